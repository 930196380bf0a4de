package scenarios_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// oneDirection drops packets from the nodes of gcp to those of aws, and not the reverse:
// no request is answered, and the paths are down on both sides.
func (f *failover) oneDirection(t *testing.T) {
	nodes := f.GCP.Nodes()
	f.outage(t, "one direction", func() { f.each(t, f.Testbed.DropOneWay, nodes...) }, func() {
		f.awaitPaths(t, "to be down one way, as what aws sends is heard", func(p *statuspage.Peer) bool {
			return p.Path != nil && p.Path.State == "down" && p.Path.Sign == "one_way"
		})
		f.each(t, f.Testbed.RestoreOneWay, nodes...)
	})
}

// awaitPaths waits until the agents of gcp report a state for all their paths.
func (f *failover) awaitPaths(t *testing.T, what string, is func(p *statuspage.Peer) bool) {
	t.Helper()
	for _, agent := range f.Agents[2:] {
		eventually(t, 3*time.Minute, "the paths of "+agent.Node.Name+" "+what, func(ctx context.Context) error {
			s, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			all := s.Remote(f.AWS.Name).Peers
			if i := slices.IndexFunc(all, func(p statuspage.Peer) bool { return !is(&p) }); i >= 0 || len(all) == 0 {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
}

// largePackets drops packets of more than 1,000 bytes between the clusters. That is reported,
// and nothing is withdrawn, as small packets get through.
func (f *failover) largePackets(t *testing.T) {
	const port = 88
	large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 4000)) // The client may have gone.
	})
	must(t, f.Pods[0].Serve(t.Context(), port, large))
	ask := ask(t, f.Pods[2], f.url(t, "gl-shop-73736d-web"))
	big := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := f.Pods[2].Get(ctx, f.Pods[0].URL(port))
		return err
	}
	must(t, big(repair))
	narrow := func(do func(from, to *testbed.Node) error) func(a, b *testbed.Node) error {
		return func(a, b *testbed.Node) error { return errors.Join(do(a, b), do(b, a)) }
	}
	at := time.Now()
	f.each(t, narrow(f.Testbed.DropLarge), f.GCP.Nodes()...)
	err := big(time.Second)
	if err == nil {
		t.Error("an answer of 4,000 bytes got through")
	}
	f.awaitPaths(t, "to carry small packets only", func(p *statuspage.Peer) bool { return p.Path != nil && p.Path.State == "up" && p.Path.SmallOnly })
	named := time.Now()
	everybody := append(slices.Clone(f.local), f.Pods[:2]...)
	failed, _ := ask.settled(t, named, 3, everybody...)
	inAll, last := ask.Failed(at)
	t.Logf("large packets lost: named after %s; of small requests %d failed until then, the last one after %s, and %d later; a large one: %v",
		seconds(at, named), inAll-failed, seconds(at, last), failed, err)
	f.says(t, 0)
	eventually(t, repair, "the metric", func(ctx context.Context) error {
		text, err := f.Agents[2].Metrics(ctx)
		if want := `semaphore_wg_paths_small_only{cluster="aws",device="wireguard.aws"} 2`; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("there is no metric %s", want)
		}
		return err
	})
	f.each(t, narrow(f.Testbed.RestoreLarge), f.GCP.Nodes()...)
	at = time.Now()
	f.awaitPaths(t, "to carry large packets", func(p *statuspage.Peer) bool { return p.Path != nil && p.Path.State == "up" && !p.Path.SmallOnly })
	must(t, big(repair))
	t.Logf("large packets restored: known after %s", seconds(at, time.Now()))
}

// attempts connects to a service once from each of some ports, for a quarter of a second, and
// returns those without an answer.
func (f *failover) attempts(t *testing.T, url string) (lost []int) {
	t.Helper()
	for range 8 {
		f.ports++
		if err := f.attempt(t, url, 2000+f.ports, 250*time.Millisecond); err != nil {
			lost = append(lost, 2000+f.ports)
		}
	}
	return lost
}

// attempt connects to a service from a port of a pod on the first node. After an attempt
// without an answer, conntrack keeps sending packets from this port to the same endpoint,
// unless the agent deletes the entry.
func (f *failover) attempt(t *testing.T, url string, port int, limit time.Duration) error {
	t.Helper()
	from := f.Pods[2]
	return from.Space().Do(func() error {
		dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{Port: port}}
		conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
