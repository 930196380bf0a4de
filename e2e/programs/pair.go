package programs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Pair is the scenario of the source documents: two clusters with nodes, an
// agent on each and a pod on each that serves HTTP on port 80.
type Pair struct {
	Testbed *testbed.Testbed
	// Binary is the path of the agents' program.
	Binary string
	AWS    *testbed.Cluster
	GCP    *testbed.Cluster
	// Agents and Pods are those of aws, then those of gcp, in the order of
	// their nodes.
	Agents []*Agent
	Pods   []*testbed.Pod
}

// PodPort is the HTTP port of the pods of a Pair.
const PodPort = 80

// StartPair builds the pair with so many nodes in each cluster. Progress is
// asked for, which may be nil. The agents are started, not yet connected.
func StartPair(ctx context.Context, tb *testbed.Testbed, binary string, nodes int, say func(string)) (*Pair, error) {
	if say == nil {
		say = func(string) {}
	}
	p, err := BarePair(ctx, tb, nodes, say, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		return nil, err
	}
	p.Binary = binary
	say("applying deploy/wireguard and deploy/remote")
	if err := Grant(ctx, WireGuard, p.AWS, p.GCP); err != nil {
		return nil, err
	}
	say("starting the agents")
	for _, pod := range p.Pods {
		agent, err := StartAgent(ctx, binary, pod.Node, p.Remotes(pod.Node.Cluster)...)
		if err != nil {
			return nil, err
		}
		p.Agents = append(p.Agents, agent)
	}
	return p, nil
}

// BarePair builds the pair of two clusters, aws and gcp, without our programs and manifests.
func BarePair(ctx context.Context, tb *testbed.Testbed, nodes int, say func(string), pair ...testbed.ClusterConfig) (*Pair, error) {
	say("starting the API servers of aws and gcp")
	clusters, err := tb.StartClusters(ctx, pair...)
	if err != nil {
		return nil, err
	}
	p := &Pair{Testbed: tb, AWS: clusters[0], GCP: clusters[1]}
	say(fmt.Sprintf("adding %d nodes and pods", 2*nodes))
	for _, c := range clusters {
		for range nodes {
			pod, err := addPod(ctx, c)
			if err != nil {
				return nil, err
			}
			p.Pods = append(p.Pods, pod)
		}
	}
	return p, nil
}

// Remotes returns the clusters that an agent of the given one talks to.
func (p *Pair) Remotes(of *testbed.Cluster) []*testbed.Cluster {
	if of == p.AWS {
		return []*testbed.Cluster{p.GCP}
	}
	return []*testbed.Cluster{p.AWS}
}

func addPod(ctx context.Context, c *testbed.Cluster) (*testbed.Pod, error) {
	node, err := c.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return nil, err
	}
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	if err != nil {
		return nil, err
	}
	err = pod.Serve(ctx, PodPort, nil)
	return pod, err
}

// WaitConnected waits until every pod reaches every pod of the other cluster,
// over both families.
func (p *Pair) WaitConnected(ctx context.Context) error {
	for _, from := range p.Pods {
		for _, to := range p.Pods {
			if from.Node.Cluster == to.Node.Cluster {
				continue
			}
			if err := WaitReach(ctx, from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// Host is a pod or a node.
type Host interface {
	Get(ctx context.Context, url string) (string, error)
}

// Reach requests the name of another cluster's pod once, over each of its addresses. On a busy machine a response
// may take seconds, which ctx has to allow: TCP retransmits lost packets.
func Reach(ctx context.Context, from Host, to *testbed.Pod) error {
	for _, url := range to.VirtualURLs(PodPort) {
		if err := ask(ctx, from, to, url); err != nil {
			return err
		}
	}
	return nil
}

// answerWait is after how long without an answer WaitReach asks again, on another connection.
const answerWait = 2 * time.Second

// WaitReach waits until a pod of another cluster responds with its name over each of its
// addresses.
func WaitReach(ctx context.Context, from Host, to *testbed.Pod) error {
	return testbed.Wait(ctx, to.Name+" to be reached", func(ctx context.Context) error {
		for _, url := range to.VirtualURLs(PodPort) {
			asking, cancel := context.WithTimeout(ctx, answerWait)
			err := ask(asking, from, to, url)
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func ask(ctx context.Context, from Host, to *testbed.Pod, url string) error {
	body, err := from.Get(ctx, url)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(body, to.Name+" ") {
		return fmt.Errorf("%s answers %q, expected %s", url, body, to.Name)
	}
	return nil
}
