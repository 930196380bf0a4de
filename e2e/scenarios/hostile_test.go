package scenarios_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// TestHostileNodes adds 40 nodes to the remote cluster, a fifth of which are hostile: none of
// these succeeds, all others become peers, and connections between pods of real nodes
// continue.
func TestHostileNodes(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent := p.Agents[0]
	status, err := agent.Status(t.Context())
	must(t, err)
	ownKey, victim := status.Remote("gcp").Device.PublicKey, status.Remote("gcp").Peers[0]

	const key, endpoint = "aws.wireguard.semaphore.uw.io/pubKey", "aws.wireguard.semaphore.uw.io/endpoint"
	hostile := map[int]func(*corev1.Node){
		0:  func(n *corev1.Node) { n.Annotations[key] = "not a key" },
		3:  func(n *corev1.Node) { n.Annotations[key] = base64.StdEncoding.EncodeToString(make([]byte, 32)) },
		6:  func(n *corev1.Node) { n.Annotations[key] = ownKey },
		9:  func(n *corev1.Node) { n.Annotations[key] = victim.PublicKey },
		12: func(n *corev1.Node) { n.Annotations[key] = strings.Repeat("A", 250<<10) }, // the API server takes 256 KiB in all
		15: func(n *corev1.Node) { n.Annotations[endpoint] = "127.0.0.1:51820" },
		18: func(n *corev1.Node) { n.Annotations[endpoint] = "224.0.0.1:51820" },
		21: func(n *corev1.Node) { n.Annotations[endpoint] = "10.66.1.1:51820" }, // the agent's own
		24: func(n *corev1.Node) { n.Annotations[endpoint] = "10.2.1.9:51820" },  // among own pods
		27: func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "0.0.0.0/0", []string{"0.0.0.0/0"} },
		30: func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.4.1.0/24", []string{"10.4.1.0/24"} }, // the victim's
		33: func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.2.1.0/24", []string{"10.2.1.0/24"} }, // the agent's own
		36: func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil },
		// Without any endpoint it would be a peer that has to initiate.
		39: func(n *corev1.Node) { n.Annotations[endpoint] = "not an endpoint" },
	}
	good, bad := []string{victim.Node}, []string{}
	const nodes = 70
	for i := range nodes {
		name := fmt.Sprintf("gcp-object-%05d", i)
		if _, is := hostile[i]; is {
			bad = append(bad, name)
		} else {
			good = append(good, name)
		}
	}
	must(t, p.GCP.AddObjects(within(t, time.Minute), nodes, func(i int, n *corev1.Node) {
		random := make([]byte, 32)
		_, err := rand.Read(random)
		must(t, err)
		n.Annotations = map[string]string{
			key:      base64.StdEncoding.EncodeToString(random),
			endpoint: fmt.Sprintf("198.18.1.%d:51820", i+1),
		}
		if spoil, is := hostile[i]; is {
			spoil(n)
		}
	}))
	waitPeers(t, agent, "gcp", good...)
	must(t, p.WaitConnected(within(t, repair)))
	must(t, agent.Ready(t.Context()))

	eventually(t, repair, "all bad ones to be rejected", func(ctx context.Context) (err error) {
		if status, err = agent.Status(ctx); err != nil {
			return err
		}
		var rejected []string
		for _, r := range status.Remote("gcp").Rejected {
			rejected = append(rejected, r.Node)
		}
		slices.Sort(rejected)
		if !slices.Equal(rejected, bad) {
			return fmt.Errorf("rejected are %v, want %v", rejected, bad)
		}
		return nil
	})
	for _, r := range status.Remote("gcp").Rejected {
		if len(r.Detail) > 500 {
			t.Errorf("%s is rejected with a text of %d bytes", r.Node, len(r.Detail))
		}
	}
	metrics, err := agent.Metrics(t.Context())
	must(t, err)
	for _, node := range bad {
		if !strings.Contains(metrics, fmt.Sprintf(`semaphore_wg_rejected_node_info{cluster="gcp",node=%q,`, node)) {
			t.Errorf("metrics don't name %s", node)
		}
	}
	for _, peer := range status.Remote("gcp").Peers {
		if peer.Node == victim.Node && (peer.PublicKey != victim.PublicKey || !slices.Equal(peer.AllowedIPs, victim.AllowedIPs)) {
			t.Errorf("the victim was %+v and is %+v", victim, peer)
		}
	}

	t.Run("a node that becomes good is taken", func(t *testing.T) {
		_, err := p.GCP.Kubectl(t.Context(), "annotate", "--overwrite", "node", bad[5], endpoint+"=198.18.9.9:51820")
		must(t, err)
		good = append(good, bad[5])
		slices.Sort(good)
		waitPeers(t, agent, "gcp", good...)
	})

	t.Run("a node that changes all the time costs the others nothing", func(t *testing.T) {
		// The log entry may follow the status with a delay.
		eventually(t, repair, "the change before to be in the log", func(context.Context) error {
			if !strings.Contains(agent.Process().Log(), fmt.Sprintf(" total=%d ", len(good))) {
				return errors.New("it isn't")
			}
			return nil
		})
		changed := func() int { return strings.Count(agent.Process().Log(), `msg="peers changed"`) }
		before := changed()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		flips := 0
		for ctx.Err() == nil {
			_, err := p.GCP.Kubectl(ctx, "annotate", "--overwrite", "node", bad[0], fmt.Sprintf("%s=%d", key, flips))
			if err == nil {
				flips++
			}
			if flips == 20 {
				break
			}
		}
		must(t, programs.Reach(within(t, repair), p.Pods[0], p.Pods[1]))
		must(t, agent.Healthy(t.Context()))
		if after := changed(); after != before {
			t.Errorf("the device's peers were changed %d times", after-before)
		}
		t.Logf("%d changes", flips)
	})

	t.Run("a handful of Events reports them", func(t *testing.T) {
		var events []corev1.Event
		eventually(t, time.Minute, "the Events", func(ctx context.Context) error {
			list, err := p.AWS.Client().CoreV1().Events(programs.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if events = list.Items; len(events) < 6 {
				return fmt.Errorf("there are %d", len(events))
			}
			return nil
		})
		reported := map[string]bool{}
		for i := range events {
			e := &events[i]
			if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != programs.PodName(agent.Node) || e.InvolvedObject.UID == "" {
				t.Errorf("about %+v", e.InvolvedObject)
			}
			if len(e.Message) > 500 {
				t.Errorf("a message of %d bytes", len(e.Message))
			}
			what := e.Reason
			for _, node := range bad {
				if strings.HasPrefix(e.Message, fmt.Sprintf("node %q of gcp is rejected, ", node)) {
					what += " " + node
				}
			}
			reported[what] = true
		}
		if len(events) != 6 || len(reported) != 6 || !reported["NodesRejected"] {
			t.Errorf("Events of %v", slices.Sorted(maps.Keys(reported)))
		}
	})

	t.Run("an older node publishes what others were given", func(t *testing.T) {
		allowed := func(ctx context.Context) (map[string][]string, *programs.Status, error) {
			status, err := agent.Status(ctx)
			if err != nil {
				return nil, nil, err
			}
			all := map[string][]string{}
			for _, peer := range status.Remote("gcp").Peers {
				all[peer.Node] = peer.AllowedIPs
			}
			return all, status, nil
		}
		before, _, err := allowed(t.Context())
		must(t, err)
		// All but the prefix of the real node, which is older.
		_, err = p.GCP.Kubectl(t.Context(), "annotate", "--overwrite", "node", bad[0], key+"="+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)),
			peers.PodCIDRsAnnotation+"=10.4.2.0/23,10.4.4.0/22,10.4.8.0/21,10.4.16.0/20,10.4.32.0/19,10.4.64.0/18")
		must(t, err)
		// A new node of ours has accepted nothing yet.
		must(t, agent.Stop(within(t, repair)))
		stored, err := filepath.Glob(filepath.Join(agent.Node.VarLib(), programs.WireGuard, "*.peers.json"))
		must(t, err)
		for _, file := range stored {
			must(t, os.Remove(file))
		}
		must(t, agent.Start())
		eventually(t, time.Minute, "the older node to be rejected alone", func(ctx context.Context) error {
			after, status, err := allowed(ctx)
			if err == nil && !maps.EqualFunc(before, after, slices.Equal) {
				err = fmt.Errorf("peers with prefixes: %v, before: %v", after, before)
			}
			if err != nil {
				return err
			}
			for _, r := range status.Remote("gcp").Rejected {
				if r.Node == bad[0] && r.Reason == string(peers.ReasonDuplicatePrefix) {
					return nil
				}
			}
			return fmt.Errorf("%s isn't rejected for its prefixes", bad[0])
		})
		must(t, programs.WaitReach(within(t, time.Minute), p.Pods[0], p.Pods[1]))
	})
}
