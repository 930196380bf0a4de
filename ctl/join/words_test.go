package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/dynamic"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// printed returns a session and what it prints.
func printed() (*cli.Session, *bytes.Buffer) {
	var out bytes.Buffer
	return cli.NewSession(nil, &out, &out), &out
}

// TestInterruptedChecks interrupts the checks of two clusters that answer no request: the
// error is that nothing was changed, not one for each request.
func TestInterruptedChecks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)
			return
		}
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	var clusters []*cli.Cluster
	for _, name := range []string{"aws", "gcp"} {
		config := &rest.Config{Host: server.URL, QPS: -1}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		c := &cli.Cluster{Name: name, Access: cli.Access{Context: name}, Server: "https://" + name, Config: config, Client: client}
		if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, c)
	}
	s, out := printed()
	err := Join(ctx, s, clusters, Options{NoProbe: true})
	if want := "context canceled\nnothing was changed"; err == nil || err.Error() != want {
		t.Errorf("%q, expected %q", err, want)
	}
	if strings.Contains(out.String(), "✓") || strings.Contains(out.String(), "canceled") {
		t.Error(out.String())
	}
}

// TestInterruptedSteps says what is done, and how to continue or undo it.
func TestInterruptedSteps(t *testing.T) {
	s, _ := printed()
	a := &installation{Session: s, facts: []*inspect.Facts{{Name: "aws"}, {Name: "gcp"}}}
	done, err := a.steps(t.Context(),
		step{"accounts and rights", func(context.Context) error { return nil }},
		step{"tokens", func(context.Context) error { return nil }},
		step{"rollout", func(context.Context) error { return context.Canceled }})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got, want := a.progress(done), "done: accounts and rights, tokens; continue with: semaphorectl or undo it with: semaphorectl leave aws gcp"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	// leave would separate what was joined before, too.
	a.facts[1].Installed.Settings = inspect.Settings{"SEMAPHORE_REMOTES": "merit,aws"}
	if got := a.undo(); got != "" {
		t.Errorf("undo with %s", got)
	}
}

// TestTwoContextsOfOneCluster has one fault, not those of its overlapping ranges.
func TestTwoContextsOfOneCluster(t *testing.T) {
	a := &installation{clusters: []*cli.Cluster{{Name: "aws", Access: cli.Access{Context: "aws"}, Server: "https://a"}, {Name: "gcp", Access: cli.Access{Context: "prod"}, Server: "https://b"}}}
	for range a.clusters {
		a.facts = append(a.facts, healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"))
	}
	a.facts[1].Name = "gcp"
	if faults := duplicates(a.clusters, a.facts); len(faults) > 0 {
		t.Errorf("without UIDs: %v", faults)
	}
	a.facts[0].UID, a.facts[1].UID = "u1", "u2"
	if faults := duplicates(a.clusters, a.facts); len(faults) > 0 {
		t.Errorf("two clusters: %v", faults)
	}
	a.facts[1].UID = "u1"
	s, out := printed()
	a.Session = s
	err := a.preflight(t.Context())
	want := "aws, gcp: the contexts aws (https://a) and prod (https://b) are of the same cluster: its namespace kube-system has the UID u1 in both: " +
		"select the context of the other cluster with --context gcp=<context>; of entries of equal names in several kubeconfigs the first one is used\n1 fault, nothing was changed"
	if err == nil || err.Error() != want || out.String() != "" {
		t.Errorf("%v, and it prints %s", err, out)
	}
	if err := a.mayLeave(t.Context()); err == nil || err.Error() != want {
		t.Errorf("leave: %v", err)
	}
}

// TestMissingRights has an account without rights: one fault with all of them, and no fault
// that is their consequence.
func TestMissingRights(t *testing.T) {
	client := fake.NewClientset()
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.3", Minor: "36"}
	forbid := func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch a.GetResource().Resource {
		case "version", "resource": // Discovery is for everyone.
			return false, nil, nil
		case "selfsubjectaccessreviews":
			return true, &authorizationv1.SelfSubjectAccessReview{}, nil
		case "selfsubjectreviews":
			return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
				UserInfo: authenticationv1.UserInfo{Username: "alice\x1b[2J"},
			}}, nil
		}
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no"))
	}
	client.PrependReactor("*", "*", forbid)
	untyped := fakedynamic.NewSimpleDynamicClient(scheme.Scheme)
	untyped.PrependReactor("*", "*", forbid)
	var clusters []*cli.Cluster
	for _, name := range []string{"aws", "gcp"} {
		clusters = append(clusters, &cli.Cluster{Name: name, Access: cli.Access{Context: "prod-" + name}, Server: "https://" + name + ".example", Config: &rest.Config{}, Client: client, Dynamic: untyped})
	}
	s, out := printed()
	if err := Leave(t.Context(), s, clusters, Options{}); err == nil || strings.Count(err.Error(), "\n") != 2 || !strings.Contains(err.Error(), "delete and patch secrets in sys-semaphore") {
		t.Errorf("leave: %v", err)
	}
	out.Reset()
	err := Join(t.Context(), s, clusters, Options{InstallOptions: InstallOptions{Image: "i:1"}})
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || lines[2] != "2 faults, nothing was changed" {
		t.Errorf("%d lines: %v", len(lines), err)
	}
	for i, name := range []string{"aws", "gcp"} {
		for _, want := range []string{
			name + `: the account alice\x1b[2J of the context prod-` + name + " may not ", "get, list, create and update configmaps in kube-system", "list nodes",
			"cluster-admin", "kubectl --context prod-" + name + " auth can-i --list",
		} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%q isn't in %s", want, lines[i])
			}
		}
	}
	if got := out.String(); strings.Contains(got, "✓") || !strings.Contains(got, "! aws: Kubernetes v1.36.3, unknown: its nodes, the ranges of its pods, those of its services, those of its nodes, its network plugin") {
		t.Error(got)
	}
}

// TestFailedTemporaryPods has one fault for each reason, and no ✓.
func TestFailedTemporaryPods(t *testing.T) {
	failed := map[string]error{}
	for i := range 8 {
		failed[fmt.Sprintf("n%d", i)] = errors.New("denied by a quota")
	}
	failed["m"] = errors.New("another reason")
	var got []string
	for _, f := range unprobed(&cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}}, "registry.example/i:1", failed) {
		got = append(got, f.String())
	}
	events := ": see what kubectl --context aws -n kube-system get events says about it; --no-probe skips this check"
	want := []string{
		"aws: a temporary pod on node m failed: another reason" + events,
		"aws: temporary pods on the nodes n0, n1, n2, n3, n4 and 3 more failed: denied by a quota" + events,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q", got)
	}
}

// TestNext prints complete commands.
func TestNext(t *testing.T) {
	s, out := printed()
	a := &installation{Session: s, clusters: []*cli.Cluster{{Name: "aws", Access: cli.Access{Context: "aws"}}, {Name: "gcp", Access: cli.Access{Context: "prod gcp"}}, {Name: "merit", Access: cli.Access{Context: "merit"}}},
		wanted: []*manifests.Cluster{{Tools: []string{manifests.WireGuard, manifests.Mirror}}}, settings: []inspect.Settings{{}}, facts: []*inspect.Facts{{DNS: &coredns.Setup{}}}}
	a.next()
	want := `✓ aws, gcp and merit are joined. Next:
  mirror a Service of gcp, here web in the namespace default:
    kubectl --context 'prod gcp' -n default label service web mirror.semaphore.uw.io/mirror-service=true
  look up its name in aws:
    kubectl --context aws run ask --rm -it --restart=Never --image=busybox -- nslookup web.default.svc.cluster.gcp
  see the state, and the causes of faults:
    semaphorectl status aws gcp merit
    semaphorectl doctor aws gcp merit
`
	if out.String() != want {
		t.Error(out.String())
	}
	out.Reset()
	a.facts[0].DNS = nil
	a.next()
	if !strings.Contains(out.String(), "nslookup gcp-default-73736d-web.sys-semaphore\n") {
		t.Error(out.String())
	}
	out.Reset()
	a.wanted[0].Tools = []string{manifests.WireGuard}
	a.next()
	if strings.Contains(out.String(), "Service") {
		t.Error(out.String())
	}
}
