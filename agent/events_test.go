package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

func TestRejectionsAreConditions(t *testing.T) {
	remote := rejections("gcp", []peers.Rejection{
		{Node: "gcp-1", Reason: peers.ReasonPublicKey, Detail: "no public key annotation"},
		{Node: "gcp-2", Reason: peers.ReasonPodCIDR, Detail: "pod CIDR 10.9.0.0/24 lies outside", Partial: true},
		{Node: "gcp-2\n", Reason: peers.ReasonEndpoint, Detail: "no endpoint annotation"},
	})
	want := []event.Condition{
		{ID: `"gcp-1" public_key false`, Name: "node.public-key.gcp-1", Reason: "NodeRejected", Message: `node "gcp-1" of gcp is rejected, public_key: no public key annotation`},
		{ID: `"gcp-2" pod_cidr true`, Name: "prefix.pod-cidr.gcp-2", Reason: "PrefixRejected", Message: `a prefix of node "gcp-2" of gcp is rejected, pod_cidr: pod CIDR 10.9.0.0/24 lies outside`},
		{ID: `"gcp-2\n" endpoint false`, Name: "node.endpoint", Reason: "NodeRejected", Message: `node "gcp-2\n" of gcp is rejected, endpoint: no endpoint annotation`},
	}
	if diff := cmp.Diff(want, remote.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	got := remote.Summary(remote.Conditions)
	if want := (event.Condition{ID: "all", Name: "all", Reason: "NodesRejected", Message: "3 nodes of gcp are rejected, or prefixes of them: " +
		"endpoint 1, pod_cidr 1, public_key 1; semaphore-wireguard status names all"}); got != want {
		t.Errorf("summary %+v", got)
	}
}

// TestWhatIsTheSameCondition lists the changes for which an Event is written again.
func TestWhatIsTheSameCondition(t *testing.T) {
	before := peers.Rejection{Node: "gcp-1", Reason: peers.ReasonPublicKey, Detail: "x"}
	for _, c := range []struct {
		name string
		now  peers.Rejection
		same bool
	}{
		{"nothing changed", before, true},
		{"another detail", peers.Rejection{Node: "gcp-1", Reason: peers.ReasonPublicKey, Detail: "y"}, true},
		{"another reason", peers.Rejection{Node: "gcp-1", Reason: peers.ReasonEndpoint, Detail: "x"}, false},
		{"another node", peers.Rejection{Node: "gcp-2", Reason: peers.ReasonPublicKey, Detail: "x"}, false},
		{"only a prefix", peers.Rejection{Node: "gcp-1", Reason: peers.ReasonPublicKey, Detail: "x", Partial: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rejections("gcp", []peers.Rejection{before}).Conditions[0].ID, rejections("gcp", []peers.Rejection{c.now}).Conditions[0].ID
			if (a == b) != c.same {
				t.Errorf("%q and %q", a, b)
			}
		})
	}
}

func TestASummaryOfManyIsShort(t *testing.T) {
	var rejected []peers.Rejection
	for i := range 5000 {
		rejected = append(rejected, peers.Rejection{Node: fmt.Sprintf("%s-%d", strings.Repeat("n", 200), i), Reason: peers.ReasonPublicKey})
	}
	remote := rejections("gcp", rejected)
	if got := remote.Summary(remote.Conditions).Message; len(got) > 200 || !strings.HasPrefix(got, "5000 nodes of gcp") {
		t.Errorf("got %q", got)
	}
}

// TestNamesOfEventsAreValid makes the longest and the oddest names.
func TestNamesOfEventsAreValid(t *testing.T) {
	for _, node := range []string{
		"", ".", "gcp-1", "gcp-1.example.com", "GCP", "gcp/1", "a b", strings.Repeat("n", 253), strings.Repeat("a.", 126) + "a",
		strings.Repeat("n", 119) + "-" + strings.Repeat("n", 20), "a" + strings.Repeat("-", 200) + "b", strings.Repeat("\x1b", 5000), strings.Repeat("é\n", 5000),
	} {
		for _, partial := range []bool{false, true} {
			remote := rejections(strings.Repeat("r", 63), []peers.Rejection{{Node: node, Reason: peers.ReasonDuplicatePrefix, Partial: partial}})
			name := "semaphore-wireguard." + remote.Name + "." + remote.Conditions[0].Name
			if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
				t.Errorf("node %q: %s: %v", node, name, faults)
			}
			// The admission policy accepts a truncated name.
			_, part, _ := strings.Cut(remote.Conditions[0].Name, "duplicate-prefix.")
			if part != "" && part != node && len(part) < 100 {
				t.Errorf("node %q: cut to %q", node, part)
			}
			// Events are truncated after that.
			message := remote.Conditions[0].Message
			if !strings.Contains(message[:min(len(message), 1000)], `" of `+remote.Name+" is rejected, duplicate_prefix: ") {
				t.Errorf("node %q: message %q", node, message)
			}
		}
	}
}
