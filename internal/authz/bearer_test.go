package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// reviewer is an API server that knows the tokens "good" and "weak", of which the
// first one may get /metrics.
type reviewer struct {
	*fake.Clientset
	down    atomic.Bool
	reviews atomic.Int64
}

func newReviewer() *reviewer {
	r := &reviewer{Clientset: fake.NewClientset()}
	r.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r.reviews.Add(1)
		if r.down.Load() {
			return true, nil, errors.New("connection refused")
		}
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if token := review.Spec.Token; token == "good" || token == "weak" {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: token, Groups: []string{"readers"}, UID: "1", Extra: map[string]authenticationv1.ExtraValue{"a": {"b"}}}
		}
		return true, review, nil
	})
	r.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		spec := review.Spec
		path := spec.NonResourceAttributes
		review.Status.Allowed = spec.User == "good" && len(spec.Groups) == 1 && spec.UID == "1" && spec.Extra["a"][0] == "b" &&
			path.Path == "/metrics" && path.Verb == "get"
		return true, review, nil
	})
	return r
}

func ask(g *Guard, authorization, path string) int {
	request := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	recorder := httptest.NewRecorder()
	g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })).ServeHTTP(recorder, request)
	return recorder.Code
}

func TestVerdicts(t *testing.T) {
	for name, tt := range map[string]struct {
		authorization, path string
		want                int
	}{
		"no token":              {"", "/metrics", 401},
		"an empty token":        {"Bearer ", "/metrics", 401},
		"a password":            {"Basic Z29vZDpnb29k", "/metrics", 401},
		"an unknown token":      {"Bearer bad", "/metrics", 401},
		"an account without":    {"Bearer weak", "/metrics", 403},
		"another path":          {"Bearer good", "/status", 403},
		"an account that may":   {"Bearer good", "/metrics", 200},
		"the scheme's own case": {"bearer good", "/metrics", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReviewer()
			g := New(clientset.Client(r), slog.New(slog.DiscardHandler))
			for range 3 {
				if got := ask(g, tt.authorization, tt.path); got != tt.want {
					t.Errorf("answered %d, want %d", got, tt.want)
				}
			}
			if n := r.reviews.Load(); n > 1 {
				t.Errorf("%d reviews of one token", n)
			}
			r.down.Store(true)
			g.verdicts = newVerdicts()
			if got := ask(g, tt.authorization, tt.path); r.reviews.Load() > 0 && got != 503 {
				t.Errorf("answered %d while the API server is down, want 503", got)
			}
		})
	}
}

func TestFailureIsLoggedOnceAndWithoutToken(t *testing.T) {
	var logged logtest.Buffer
	r := newReviewer()
	r.down.Store(true)
	g := New(clientset.Client(r), slog.New(slog.NewTextHandler(&logged, nil)))
	for range 3 {
		if got := ask(g, "Bearer good", "/metrics"); got != 503 {
			t.Errorf("answered %d, want 503", got)
		}
	}
	r.down.Store(false)
	if got := ask(g, "Bearer good", "/metrics"); got != 200 {
		t.Errorf("afterwards %d", got)
	}
	if text := logged.String(); strings.Count(text, "can't be reviewed") != 1 || strings.Count(text, "again") != 1 || strings.Contains(text, "good") {
		t.Errorf("logged:\n%s", text)
	}
}

// TestUnknownTokensDoNotKeepOutKnownOnes floods the guard with tokens.
func TestUnknownTokensDoNotKeepOutKnownOnes(t *testing.T) {
	r := newReviewer()
	g := New(clientset.Client(r), slog.New(slog.DiscardHandler))
	if got := ask(g, "Bearer good", "/metrics"); got != 200 {
		t.Fatalf("answered %d", got)
	}
	// Its verdict has to be renewed.
	g.verdicts.allowed.Add(keyOf("good", "/metrics"), time.Now().Add(-2*allowedFor), rememberFor)
	busy := 0
	for n := range 3 * maxVerdicts {
		if ask(g, fmt.Sprintf("Bearer %d", n), "/metrics") == 503 {
			busy++
		}
	}
	if busy == 0 {
		t.Error("every token was reviewed")
	}
	if got := ask(g, "Bearer good", "/metrics"); got != 200 {
		t.Errorf("the known one gets %d", got)
	}
}

func TestVerdictsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vs := newVerdicts()
		good := keyOf("good", "/metrics")
		vs.put(good, allowed)
		for n := range 10 * maxVerdicts {
			time.Sleep(10 * time.Millisecond)
			vs.put(keyOf(fmt.Sprint(n), "/metrics"), unknown)
		}
		if n := len(vs.refused.Keys()); n > maxVerdicts {
			t.Errorf("%d refusals are kept", n)
		}
		if v, fresh, _ := vs.get(good); v != allowed || !fresh {
			t.Error("refusals evicted an allowed token")
		}
		time.Sleep(2 * allowedFor)
		if _, fresh, known := vs.get(good); fresh || !known {
			t.Error("a verdict never expires")
		}
		if v, fresh, known := vs.get(keyOf("never", "/metrics")); fresh || known || v == allowed {
			t.Error("a token that was never reviewed counts")
		}
		vs.put(good, forbidden)
		if v, fresh, known := vs.get(good); v != forbidden || !fresh || known {
			t.Error("a revoked right goes on")
		}
		time.Sleep(2 * refusedFor)
		if _, fresh, _ := vs.get(good); fresh {
			t.Error("a refusal never expires")
		}
	})
}

func TestClientThatIsGoneIsNoFailure(t *testing.T) {
	var logged logtest.Buffer
	r := newReviewer()
	r.down.Store(true)
	g := New(clientset.Client(r), slog.New(slog.NewTextHandler(&logged, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.verdict(ctx, "good", "/metrics"); err == nil || logged.String() != "" {
		t.Errorf("%v, logged:\n%s", err, logged.String())
	}
}
