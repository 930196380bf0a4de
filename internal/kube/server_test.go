package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestFresh(t *testing.T) {
	t.Parallel()
	at := func(seconds int) time.Time { return time.Unix(int64(10_000+seconds), 0) }
	for _, c := range []struct {
		name   string
		own    time.Time
		open   bool
		server time.Time
		want   time.Time
	}{
		{"an open watch is as fresh as the server", at(0), true, at(30), at(30)},
		{"a failing one knows what it heard itself", at(0), false, at(30), at(0)},
		{"an open one that heard more than the others", at(30), true, at(0), at(30)},
		{"one without bookmarks isn't served any more", at(0), true, at(600), at(0).Add(bookmarkPeriod)},
		{"never", time.Time{}, false, at(0), time.Time{}},
		{"no server", at(0), true, time.Time{}, at(0)},
	} {
		if got := fresh(c.own, c.open, c.server); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// remoteEnd is an API server with two watches, in a bubble of time.
type remoteEnd struct {
	*Server
	one, two *health
	log      *logtest.Buffer

	mu    sync.Mutex
	down  bool
	asked []time.Time
}

var errRefused = errors.New("connection refused")

func newRemoteEnd(t *testing.T, staleAfter time.Duration) *remoteEnd {
	t.Helper()
	r := &remoteEnd{log: &logtest.Buffer{}}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	r.Server = NewServer(ServerConfig{Cluster: "gcp", StaleAfter: staleAfter, Logger: log, Ping: func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, time.Now())
		if r.down {
			return errRefused
		}
		return nil
	}})
	var m *Metrics
	watch := func(kind string) *health {
		return newHealth(r.Server, m.series("gcp", kind), log)
	}
	r.one, r.two = watch("services"), watch("slices")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *remoteEnd) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// begin opens the stream of a watch.
func (r *remoteEnd) begin(c *health) {
	c.record(context.Background(), true)
	c.streamOpened()
}

// breaks ends the stream of a watch, and fails its next request.
func (r *remoteEnd) breaks(c *health) {
	c.streamClosed()
	c.recordFailure(context.Background(), verbWatch, errRefused)
}

// stale reports whether one of the watches is stale.
func (r *remoteEnd) stale() bool {
	for _, c := range []*health{r.one, r.two} {
		if last, _ := c.state(); time.Since(last) > r.StaleAfter() {
			return true
		}
	}
	return false
}

func elapse(d time.Duration) {
	time.Sleep(d) // the bubble's
	synctest.Wait()
}

// TestQuietServerIsNotStale has watches with bookmarks only, as those of a healthy remote
// without changes.
func TestQuietServerIsNotStale(t *testing.T) {
	t.Parallel()
	for _, staleAfter := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 45 * time.Second, time.Hour} {
		t.Run(staleAfter.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRemoteEnd(t, staleAfter)
				r.begin(r.one)
				elapse(20 * time.Second)
				r.begin(r.two)
				for range 10 {
					for range 240 {
						elapse(250 * time.Millisecond)
						if r.stale() {
							t.Fatal("stale although it answers")
						}
					}
					r.one.record(t.Context(), true)
					r.two.record(t.Context(), true)
				}
				for i := 1; i < len(r.asked); i++ {
					if pause := r.asked[i].Sub(r.asked[i-1]); pause < minSilence {
						t.Fatalf("asked twice in %v", pause)
					}
				}
				if n := len(r.asked); staleAfter == time.Hour && n > 0 {
					t.Errorf("asked %d times although it was heard of once a minute", n)
				}
				if r.log.String() != "" {
					t.Errorf("logged:\n%s", r.log.String())
				}
			})
		})
	}
}

// TestDeadServerIsFoundInTime stops a server without breaking the connections.
func TestDeadServerIsFoundInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemoteEnd(t, 6*time.Second)
		r.begin(r.one)
		r.begin(r.two)
		elapse(20 * time.Second)
		r.set(true)
		elapse(3900 * time.Millisecond)
		if r.stale() {
			t.Error("stale before its time")
		}
		elapse(2200 * time.Millisecond)
		if !r.stale() {
			t.Error("not stale after its time")
		}
		elapse(time.Minute)
		r.set(false)
		elapse(2100 * time.Millisecond)
		if r.stale() {
			t.Error("stale although it answers and the watches are still open")
		}
		log := r.log.String()
		if strings.Count(log, "level=WARN") != 1 || strings.Count(log, "ping succeeded again") != 1 {
			t.Errorf("want one warning and its end:\n%s", log)
		}
	})
}

// TestWatchesThatRecoverApart ends an outage: each watch has a back-off of its own.
func TestWatchesThatRecoverApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemoteEnd(t, 3*time.Second)
		r.begin(r.one)
		r.begin(r.two)
		elapse(10 * time.Second)
		r.set(true)
		r.breaks(r.one)
		r.breaks(r.two)
		elapse(10 * time.Second)
		if !r.stale() {
			t.Fatal("not stale in an outage")
		}
		r.set(false)
		elapse(time.Second)
		r.begin(r.one)
		elapse(25 * time.Second)
		if !r.stale() {
			t.Error("not stale although a watch has been failing since")
		}
		r.begin(r.two)
		for range 100 {
			elapse(100 * time.Millisecond)
			if r.stale() {
				t.Fatal("stale although both watches are back")
			}
		}
	})
}

// TestStreamThatEndsWasFreshUntilThen restarts a watch, as API servers cause every few
// minutes.
func TestStreamThatEndsWasFreshUntilThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemoteEnd(t, 3*time.Second)
		r.begin(r.one)
		r.begin(r.two)
		elapse(50 * time.Second)
		r.two.streamClosed()
		elapse(time.Second)
		if r.stale() {
			t.Error("stale between two streams")
		}
		r.begin(r.two)
		// The end of the previous stream doesn't end this one.
		r.two.streamOpened()
		r.two.streamClosed()
		elapse(10 * time.Second)
		if r.stale() {
			t.Error("stale although the stream is open")
		}
		r.breaks(r.two)
		elapse(4 * time.Second)
		if !r.stale() {
			t.Error("not stale although a watch fails")
		}
	})
}

// TestListsThatFailRecoverInTime runs watches whose lists are refused at different times,
// as before a token is installed.
func TestListsThatFailRecoverInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		server := NewServer(ServerConfig{})
		refused := func() error {
			if time.Since(began) < 12*time.Second {
				return apierrors.NewUnauthorized("no token")
			}
			return nil
		}
		watches := make([]*Watch[string], 5)
		var running sync.WaitGroup
		for i := range watches {
			watches[i] = NewWatch(WatchConfig[string]{
				Cluster: "gcp", Kind: fmt.Sprint(i), Server: server, Logger: slog.New(slog.DiscardHandler),
				Keep: func(runtime.Object) (string, bool) { return "", true }, Notify: func() {},
				ListWatch: &cache.ListWatch{
					ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
						return &corev1.NodeList{}, refused()
					},
					WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
						if err := refused(); err != nil {
							return nil, err
						}
						if options.SendInitialEvents != nil {
							return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
						}
						return watch.NewFake(), nil
					},
				},
			})
			running.Go(func() { _ = watches[i].Run(ctx) })
			elapse(300 * time.Millisecond)
		}
		synced := func() (n int) {
			synctest.Wait()
			for _, w := range watches {
				if w.Synced() {
					n++
				}
			}
			return n
		}
		elapse(10 * time.Second)
		if n := synced(); n > 0 {
			t.Errorf("%d are synced", n)
		}
		elapse(9 * time.Second)
		if n := synced(); n != len(watches) {
			t.Errorf("eight seconds after the server accepts requests %d of %d have recovered", n, len(watches))
		}
		cancel()
		running.Wait()
	})
}

func TestPing(t *testing.T) {
	t.Parallel()
	for code, alive := range map[int]bool{
		http.StatusOK: true, http.StatusForbidden: true, http.StatusTooManyRequests: true,
		http.StatusUnauthorized: false, http.StatusNotFound: false, http.StatusInternalServerError: false,
		http.StatusServiceUnavailable: false, http.StatusGatewayTimeout: false,
	} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			const hostile = "\x1b[2Jthe server says"
			var requests atomic.Int32
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(code)
				_, _ = w.Write([]byte(hostile))
			}))
			t.Cleanup(s.Close)
			client, err := NewClient(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{
				CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
			}})
			if err != nil {
				t.Fatal(err)
			}
			err = Ping(func() (Client, error) { return client, nil })(t.Context())
			if (err == nil) != alive {
				t.Errorf("%v, want alive %v", err, alive)
			}
			if err != nil && strings.Contains(err.Error(), "says") {
				t.Errorf("the server's words in %q", err)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests, want one", n)
			}
		})
	}
	absent := errors.New("not mounted yet")
	if err := Ping(func() (Client, error) { return nil, absent })(t.Context()); !errors.Is(err, absent) {
		t.Errorf("without a client: %v", err)
	}
}
