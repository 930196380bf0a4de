package join

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestOnlyWhatIsGoneIsGone asks nodes whether they reach the API server of a cluster that is
// said to be gone.
func TestOnlyWhatIsGoneIsGone(t *testing.T) {
	const server = "https://api.merit.example:6443"
	ca := map[string][]byte{"merit.ca.crt": []byte(kubetest.Certificate(t))}
	refused := fmt.Sprintf(`{"servers":{%q:"connection refused"}}`, server)
	for name, c := range map[string]struct {
		settings inspect.Settings
		secret   map[string][]byte
		message  string // of the temporary pod
		want     string // empty: it is gone
	}{
		"not reached":       {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_API_URL": server}, ca, refused, ""},
		"reached":           {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_API_URL": server}, ca, fmt.Sprintf(`{"servers":{%q:""}}`, server), "merit isn't gone: node n of aws reaches its API server at " + server + "; separate it with semaphorectl leave merit"},
		"another authority": {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_API_URL": server}, ca, fmt.Sprintf(`{"servers":{%q:"tls: failed to verify certificate: x509: certificate signed by unknown authority"}}`, server), "can't be checked from node n"},
		"no answer":         {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_API_URL": server}, ca, "killed", "can't be checked: a temporary pod on node n failed"},
		"no authority":      {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_API_URL": server}, nil, refused, "can't be checked: its Secrets have no CA"},
		"by kubeconfig":     {inspect.Settings{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_KUBECONFIG": "/k"}, ca, refused, "can't be checked"},
		"it isn't a remote": {inspect.Settings{"SEMAPHORE_REMOTES": "gcp"}, nil, refused, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-service-mirror-remotes", Namespace: cli.Namespace}, Data: c.secret})
			client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
					State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: c.message}},
				}}}}, nil
			})
			f := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
			f.Installed.Settings = c.settings
			s, _ := printed()
			err := (&installation{Session: s}).unreached(t.Context(), &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: client}, f, "merit")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, expected %q", err, c.want)
			}
		})
	}
}

// TestPlanOfLeaving records that a cluster left, until it is joined again.
func TestPlanOfLeaving(t *testing.T) {
	for name, c := range map[string]struct {
		remotes, left                string
		from                         []cluster.Name
		after, departed              string
		entirely, joined, hadStarted bool
	}{
		"one of two":          {"gcp,merit", "", []cluster.Name{"merit"}, "gcp", "merit", false, true, false},
		"beside earlier ones": {"gcp,merit", "oracle", []cluster.Name{"merit"}, "gcp", "merit,oracle", false, true, false},
		"the last one":        {"merit", "", []cluster.Name{"merit"}, "", "merit", true, true, false},
		"interrupted":         {"gcp", "merit", []cluster.Name{"merit"}, "gcp", "merit", false, false, true},
		"not joined":          {"gcp", "", []cluster.Name{"merit"}, "gcp", "merit", false, false, false},
	} {
		f := &inspect.Facts{Name: "aws", Installed: inspect.Installed{Settings: inspect.Settings{"SEMAPHORE_REMOTES": c.remotes}}}
		if c.left != "" {
			f.Installed.Settings["SEMAPHORE_DEPARTED_REMOTES"] = c.left
		}
		p := plan(f, c.from)
		if p.settings["SEMAPHORE_REMOTES"] != c.after || p.settings["SEMAPHORE_DEPARTED_REMOTES"] != c.departed || p.entirely != c.entirely || p.joined != c.joined || p.started != c.hadStarted {
			t.Errorf("%s: %+v", name, p)
		}
		if f.Installed.Settings["SEMAPHORE_REMOTES"] != c.remotes || f.Installed.Settings["SEMAPHORE_DEPARTED_REMOTES"] != c.left {
			t.Errorf("%s: the installed settings have changed: %v", name, f.Installed.Settings)
		}
	}
	f := &inspect.Facts{Name: "aws", Installed: inspect.Installed{Settings: inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_DEPARTED_REMOTES": "merit,oracle"}}}
	again := settings(f, []remoteSettings{remote(t, "merit", "10.6.0.0/16")}, nil)
	if again["SEMAPHORE_DEPARTED_REMOTES"] != "oracle" {
		t.Errorf("joined again: %v", again)
	}
	f.Installed.Settings["SEMAPHORE_DEPARTED_REMOTES"] = "merit"
	if again, is := settings(f, []remoteSettings{remote(t, "merit", "10.6.0.0/16")}, nil)["SEMAPHORE_DEPARTED_REMOTES"]; is {
		t.Errorf("joined again: %q", again)
	}
}

// TestNoClusterIsUninstalledUnasked has a cluster that others name, and that isn't joined with
// them.
func TestNoClusterIsUninstalledUnasked(t *testing.T) {
	s, out := printed()
	a := &installation{Session: s, clusters: []*cli.Cluster{{Name: "merit", Access: cli.Access{Context: "merit"}}}, facts: []*inspect.Facts{{Name: "merit", Installed: inspect.Installed{Tools: []string{"wireguard"}}}},
		settings: make([]inspect.Settings, 1)}
	if err := a.separate(t.Context(), func(*inspect.Facts) ([]cluster.Name, bool) { return []cluster.Name{"aws"}, false }); err != nil {
		t.Fatal(err)
	}
	if out.String() != "! merit: it isn't joined with aws, nothing was changed\n" {
		t.Error(out.String())
	}
}

// TestLeaveOfADeadCluster says how to have the others forget it.
func TestLeaveOfADeadCluster(t *testing.T) {
	s, _ := printed()
	dead := &inspect.Facts{Name: "merit", Unread: []error{(&cli.Cluster{Server: "https://m", Access: cli.Access{Context: "merit"}}).Unanswered(errAway)}}
	a := &installation{Session: s, facts: []*inspect.Facts{dead, healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")}}
	a.facts[1].Installed.Settings = inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws"}
	const fault = "merit: the API server at https://m doesn't answer: away: check that it runs, that the address in the kubeconfig is right, and that it is reachable from here\n1 fault, nothing was changed\n"
	if err := a.mayLeave(t.Context()); err == nil || err.Error() != fault+"if merit no longer exists: semaphorectl leave --gone merit aws" {
		t.Error(err)
	}
	a.facts = a.facts[:1]
	if err := a.mayLeave(t.Context()); err == nil || err.Error() != fault+"if merit no longer exists: semaphorectl leave --gone merit CLUSTER..., with its neighbours" {
		t.Error(err)
	}
}
