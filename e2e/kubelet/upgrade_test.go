package kubelet_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var (
	from   = flag.String("from", "", `revision of the repository that TestUpgrade moves from, and back to; "before" is the release before`)
	rounds = flag.Int("rounds", 2, "how often TestUpgrade moves there and back")
	// An agent looks at everything every 30 s.
	mixed = flag.Duration("mixed", 40*time.Second, "how long TestUpgrade has clusters of both releases side by side, each time")
)

// release is a version of our image, and the operator's copy of the manifests that came
// with it.
type release struct{ version, deploy string }

// upgrade is a lab whose clusters move from an earlier release to this one, and back.
type upgrade struct {
	*lab
	old, today release
	gap        atomic.Bool // there may be one, because devices change hands without surge
}

// TestUpgrade moves two clusters from an earlier release to this one, and back, one
// after the other, each time with a while between in which both releases make one mesh:
// by `kubectl apply`, as docs/upgrade.md says, under traffic.
func TestUpgrade(t *testing.T) {
	if *from == "" {
		t.Skip("NOT RUN: it needs a revision of the repository's history to move from: make e2e-upgrade")
	}
	revision := *from
	if revision == "before" {
		revision = programs.Before
	}
	sources := t.TempDir()
	must(t, programs.Sources(t.Context(), revision, sources))
	l := startLabOf(t, []source{{"old", sources}, {"today", ""}}, "aws", "gcp")
	u := &upgrade{lab: l, old: release{"old", filepath.Join(sources, "deploy")}, today: release{"today", l.deploy[0]}}
	for i := range l.clusters {
		l.configure(t, i, u.today.version)
		l.deploy[i] = u.old.deploy
	}
	l.install(t, u.old.version)
	l.waitReach(t)
	for i := range l.clusters {
		l.waitVersion(t, i, u.old.version)
		l.serveMeter(t, i)
	}
	for i := range l.clusters {
		u.waitMirrored(t, i)
	}
	for i := range l.clusters {
		u.watchMirrored(t, i)
	}
	u.measure(t, "nothing", func() { time.Sleep(5 * time.Second) })
	before := u.state(t)

	for round := range *rounds {
		order := [][2]int{{0, 1}, {1, 0}}[round%2]
		first, second := order[0], order[1]
		step := func(what string, cluster int, to release) {
			name := fmt.Sprintf("%d: %s, %s", round+1, what, l.clusters[cluster].Name)
			moves := func(t *testing.T) { u.interrupt(t, name, func() { u.move(t, cluster, to) }) }
			if !t.Run(name, func(t *testing.T) { u.encrypted(t, func() { moves(t) }) }) {
				t.FailNow()
			}
		}
		step("first to today's", first, u.today)
		t.Run("mixed", u.sideBySide)
		step("second to today's", second, u.today)
		t.Run("today's", u.well)
		u.gap.Store(true)
		step("first back", first, u.old)
		u.settled(t)
		t.Run("mixed again", u.sideBySide)
		u.gap.Store(true)
		step("second back", second, u.old)
		u.settled(t)
		u.measure(t, "nothing, on the old release again", func() { time.Sleep(5 * time.Second) })
		u.compare(t, before)
	}
	u.move(t, 0, u.today)
	u.gap.Store(true)
	t.Run("taken out by this release", func(t *testing.T) {
		u.takeOutOf(t, 0)
		must(t, programs.Clean(t.Context(), u.nodes[0]))
	})
	t.Run("taken out by the earlier release", func(t *testing.T) {
		u.kubectl(t, 1, "annotate", "nodes", "--all", "wireguard.semaphore.uw.io/podCIDRs-")
		u.takeOutOf(t, 1)
		err := programs.Clean(t.Context(), u.nodes[1])
		if err != nil && err.Error() != "files beside keys of "+u.nodes[1].Name+": acting.lock\n" {
			t.Error(err)
		}
	})
}

// move applies the manifests of a release in a cluster, and waits for all of it.
func (u *upgrade) move(t *testing.T, cluster int, to release) {
	t.Helper()
	u.deploy[cluster] = to.deploy
	u.apply(t, cluster, "")
	u.waitVersion(t, cluster, to.version)
	u.waitReach(t)
	for _, name := range []string{programs.ServiceMirror, programs.Policy} {
		u.kubectl(t, cluster, "-n", programs.Namespace, "rollout", "status", "deployment/"+name, "--timeout=120s")
	}
}

// encrypted checks that no packet of pods is in plaintext on the wire while something runs.
func (u *upgrade) encrypted(t *testing.T, happens func()) {
	t.Helper()
	capture, err := u.testbed.Capture()
	must(t, err)
	happens()
	counts, err := capture.Counts(within(t, time.Minute))
	must(t, err)
	t.Logf("FIGURE on the wire: %v", counts)
	if counts.Plaintext.Packets > 0 || counts.WireGuard.Packets == 0 || counts.Dropped > 0 {
		t.Errorf("plaintext on the wire: %v\n%v", counts, capture.Plaintext())
	}
	must(t, capture.Close())
}

// settled waits until the consequences of a gap are over.
func (u *upgrade) settled(t *testing.T) {
	t.Helper()
	u.waitMirrored(t, 0)
	u.waitMirrored(t, 1)
	u.gap.Store(false)
}

// sideBySide runs both releases in one mesh for a while.
func (u *upgrade) sideBySide(t *testing.T) {
	before := [2]string{u.waitMirrored(t, 0), u.waitMirrored(t, 1)}
	u.encrypted(t, func() { u.under(t, "both releases side by side", func() { time.Sleep(*mixed) }) })
	if after := [2]string{u.waitMirrored(t, 0), u.waitMirrored(t, 1)}; after != before {
		t.Errorf("endpoints of mirrored services were written: %v, before %v", after, before)
	}
	u.noneDown(t)
	out, err := u.run(t, "doctor", "aws", "gcp", "--no-probe")
	t.Logf("doctor ended with %v", err)
	if !strings.Contains(out, "old-agent") {
		t.Error("doctor doesn't name the old agent")
	}
}

// well checks that doctor finds no faults on two clusters of this release. Agents of the earlier
// one know no lock: until their pods end they and those of this release set back each other's
// packet filter, a fault that is over after a minute.
func (u *upgrade) well(t *testing.T) {
	u.noneDown(t)
	u.waitMirrored(t, 0)
	u.waitMirrored(t, 1)
	must(t, testbed.Wait(within(t, 2*time.Minute), "doctor to find no fault", func(context.Context) error {
		if out, err := u.run(t, "doctor", "aws", "gcp", "--no-probe"); strings.Contains(out, "✗") {
			return fmt.Errorf("doctor finds faults: %w", err)
		}
		return nil
	}))
}

// noneDown checks that no agent's status or report has a path that is down.
func (u *upgrade) noneDown(t *testing.T) {
	t.Helper()
	for i, c := range u.clusters {
		reports, err := programs.Reports(t.Context(), c)
		must(t, err)
		for _, r := range reports {
			t.Errorf("%s: %s reports paths that are down: %v", c.Name, r.Node, r.Remotes)
		}
		status, err := u.nodes[i].Get(t.Context(), fmt.Sprintf("http://%s:7773/status", u.nodes[i].Addresses()[0]))
		must(t, err)
		if strings.Contains(status, `"down"`) {
			t.Errorf("the agent of %s says that a path is down: %s", c.Name, status)
		}
	}
}

// waitMirrored waits until the other cluster's service has its endpoint here, and
// returns the version of what says so.
func (u *upgrade) waitMirrored(t *testing.T, cluster int) (version string) {
	t.Helper()
	want := u.meters[1-cluster].Status.PodIP
	must(t, testbed.Wait(within(t, 2*time.Minute), "the mirrored service in "+u.clusters[cluster].Name, func(ctx context.Context) error {
		slices, err := u.clusters[cluster].Client().DiscoveryV1().EndpointSlices(programs.Namespace).List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + programs.ServiceMirror})
		if err != nil {
			return err
		}
		for i := range slices.Items {
			if s := &slices.Items[i]; sends(s, want) {
				version = s.Name + " " + s.ResourceVersion
				return nil
			}
		}
		return errors.New("it has no endpoint that is ready")
	}))
	return version
}

// sends says whether a slice has traffic sent to an address.
func sends(s *discoveryv1.EndpointSlice, address string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.Contains(e.Addresses, address) && (e.Conditions.Ready == nil || *e.Conditions.Ready)
	})
}

// watchMirrored checks, until the test ends, that the other cluster's service has its endpoint
// here, except during a gap that may be long enough to withdraw it.
func (u *upgrade) watchMirrored(t *testing.T, cluster int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	client := u.clusters[cluster].Client().DiscoveryV1().EndpointSlices(programs.Namespace)
	want := u.meters[1-cluster].Status.PodIP
	watching.Go(func() {
		for ctx.Err() == nil {
			events, err := client.Watch(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + programs.ServiceMirror})
			if err != nil {
				t.Log(err)
				time.Sleep(time.Second)
				continue
			}
			for event := range events.ResultChan() {
				s, ok := event.Object.(*discoveryv1.EndpointSlice)
				if !ok || event.Type != watch.Deleted && sends(s, want) {
					continue
				}
				if t.Logf("FIGURE %s: %s is withdrawn (%s)", u.clusters[cluster].Name, s.Name, event.Type); !u.gap.Load() {
					t.Error("it was withdrawn without an outage")
				}
			}
		}
	})
}

// state returns the state of a release on nodes and in clusters, as lines, without names that
// change each time.
func (u *upgrade) state(t *testing.T) []string {
	t.Helper()
	all := u.everything(t)
	for i, c := range u.clusters {
		for what, command := range map[string]string{
			"link":      "ip -o -d link 2>/dev/null | grep 'semaphore ' | sed -E 's/^[0-9]+: //; s/ state [A-Z]+//'",
			"address":   "ip -o address 2>/dev/null | grep wireguard | sed -E 's/^[0-9]+: //'",
			"nft":       "nft -s list table inet semaphore-wireguard",
			"file":      "cd /var/lib/semaphore-wireguard && ls -A -l | awk 'NR > 1 {print $1, $3, $4, $NF}'",
			"socket":    "cd /var/run/wireguard && ls -A -l | awk 'NR > 1 {print $1, $3, $4, $NF}'",
			"listening": "ss -H -l -n -t -u | grep -e :5184 -e :777 | awk '{print $1, $5}'",
		} {
			out, err := u.nodes[i].Run(t.Context(), "sh", "-c", command)
			must(t, err)
			for line := range strings.Lines(out) {
				all = append(all, c.Name+" "+what+": "+strings.TrimSpace(line))
			}
		}
	}
	for i, c := range u.clusters {
		for _, kind := range []string{"daemonsets", "deployments", "cronjobs", "roles", "rolebindings", "clusterroles"} {
			out := u.kubectl(t, i, "-n", programs.Namespace, "get", kind, "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec}{.rules}{.subjects}{"\n"}{end}`)
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "semaphore-") {
					all = append(all, c.Name+" content of "+kind+" "+strings.TrimSpace(line))
				}
			}
		}
	}
	return slices.DeleteFunc(all, func(line string) bool {
		return slices.ContainsFunc(renamed, func(part string) bool { return strings.Contains(line, part) })
	})
}

// renamed are parts of lines about what has another name each time, or is kept of
// earlier rollouts.
var renamed = []string{" pods ", " pods.metrics", " replicasets.apps ", " controllerrevisions.apps ", " jobs.batch ", ": veth", ": Error"}

// stays are beginnings of lines about what this release adds and an earlier one leaves there,
// for each cluster. docs/upgrade.md lists them.
var stays = []string{
	"address: wireguard.", // Its link-local one.
	"link: wireguard.",    // With a longer queue.
	"file: -rw------- root root acting.lock",
	"ls -A /var/lib/semaphore-wireguard",
	"validatingadmissionpolicies.admissionregistration.k8s.io /semaphore-wireguard-leases",
	"validatingadmissionpolicybindings.admissionregistration.k8s.io /semaphore-wireguard-leases",
	"validatingadmissionpolicies.admissionregistration.k8s.io /semaphore-tokens",
	"validatingadmissionpolicybindings.admissionregistration.k8s.io /semaphore-tokens",
	"resourcequotas sys-semaphore/system-cluster-critical",
}

// published is the annotation of nodes that this release adds and an earlier one leaves there.
var published = regexp.MustCompile(` "wireguard\.semaphore\.uw\.io/podCIDRs":"[^"]*"`)

// compare checks that an earlier release finds its own state, and only what may stay of this
// one.
func (u *upgrade) compare(t *testing.T, before []string) {
	t.Helper()
	after := u.state(t)
	for i, line := range after {
		if stays := published.FindString(line); stays != "" {
			t.Log("it stays:" + stays)
			after[i] = strings.Replace(line, stays, "", 1)
		}
	}
	for _, line := range after {
		if slices.Contains(before, line) {
			continue
		}
		_, rest, _ := strings.Cut(line, " ")
		if slices.ContainsFunc(stays, func(begin string) bool { return strings.HasPrefix(rest, begin) }) {
			t.Log("it stays: " + line)
			continue
		}
		t.Error("it is left: " + line)
	}
	for _, line := range before {
		if !slices.Contains(after, line) && !strings.Contains(line, " link: wireguard.") {
			t.Error("it is gone: " + line)
		}
	}
}
