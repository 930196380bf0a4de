package handover

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// TestOutdated compares what programs report of their credentials with what was handed over.
func TestOutdated(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	before, later := now.Add(-time.Hour), now.Add(time.Hour)
	handed := map[string][]string{"gcp": {"mirror"}, "merit": nil}
	issued := map[[2]string]time.Time{{"gcp", "mirror"}: now}
	for name, c := range map[string]struct {
		remote string
		check  statuspage.CredentialCheck
		want   string // empty: the token is as it should be
	}{
		"the new one":              {"gcp", statuspage.CredentialCheck{Issued: &now}, ""},
		"a renewed one":            {"gcp", statuspage.CredentialCheck{Issued: &later}, ""},
		"one that never expires":   {"gcp", statuspage.CredentialCheck{}, ""},
		"the one before, accepted": {"gcp", statuspage.CredentialCheck{Issued: &before}, "hasn't read the new token for gcp yet"},
		"the one before, refused":  {"gcp", statuspage.CredentialCheck{Issued: &before, Error: "get nodes: Unauthorized", Reason: kube.TokenRefused}, "a request to gcp with the credentials on disk: get nodes: Unauthorized"},
		"the new one, refused":     {"gcp", statuspage.CredentialCheck{Issued: &now, Error: "get nodes: Unauthorized", Reason: kube.TokenRefused}, "Unauthorized"},
		"no file":                  {"gcp", statuspage.CredentialCheck{Error: "open /etc/semaphore/remotes/gcp.token: no such file or directory", Reason: kube.CredentialsMissing}, "no such file"},
		"no answer":                {"gcp", statuspage.CredentialCheck{Issued: &now, Error: "dial tcp: i/o timeout", Reason: kube.Away}, ""},
		"another one's, old":       {"merit", statuspage.CredentialCheck{Issued: &before}, ""},
		"another one's, refused":   {"merit", statuspage.CredentialCheck{Issued: &before, Error: "Unauthorized", Reason: kube.TokenRefused}, "a request to merit with the credentials on disk: Unauthorized"},
		"one that isn't joined":    {"oracle", statuspage.CredentialCheck{Error: "Unauthorized", Reason: kube.TokenRefused}, ""},
	} {
		report := &statuspage.Mirror{Credentials: map[string]statuspage.CredentialCheck{c.remote: c.check}}
		cluster := &inspect.Cluster{Name: "aws", Access: cli.Access{Context: "prod"}, Mirrors: []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: report}}}}
		err := outdated(cluster, handed, issued)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "aws: semaphore-service-mirror") ||
			!strings.HasSuffix(err.Error(), "kubectl --context prod -n sys-semaphore rollout restart deployment/semaphore-service-mirror")) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestAwait waits for a program whose token on disk is refused at first.
func TestAwait(t *testing.T) {
	issued := time.Unix(1_700_000_000, 0)
	var asked atomic.Int32
	mux := http.NewServeMux()
	answer := func(path string, with func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(with()); err != nil {
				t.Error(err)
			}
		})
	}
	const pods = "/api/v1/namespaces/" + cli.Namespace + "/pods"
	answer(pods, func() any {
		return corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "mirror-1", Labels: map[string]string{"app.kubernetes.io/name": inspect.ServiceMirror}},
			Status:     corev1.PodStatus{PodIP: "10.2.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}}}
	})
	answer("/version", func() any { return map[string]string{"gitVersion": "v1.36.3"} })
	answer(pods+"/mirror-1:8080/proxy/status", func() any {
		check := statuspage.CredentialCheck{Issued: &issued}
		if asked.Add(1) == 1 {
			check.Error, check.Reason = "get services: Unauthorized", kube.TokenRefused
		}
		return statuspage.Mirror{Credentials: map[string]statuspage.CredentialCheck{"gcp": check}}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	session := cli.NewSession(strings.NewReader(""), &said, &said)
	if err := Await(t.Context(), session, &cli.Cluster{Name: "aws", Config: config, Client: client}, map[string][]string{"gcp": nil}); err != nil {
		t.Error(err)
	}
	if asked.Load() != 2 || !strings.Contains(said.String(), "aws: waiting until its programs have read the new tokens") {
		t.Errorf("asked %d times, and said:\n%s", asked.Load(), said.String())
	}
}
