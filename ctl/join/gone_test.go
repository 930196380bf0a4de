package join

import (
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

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
