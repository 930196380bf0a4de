package programs

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Ports that agents listen on: metrics and status at the node's InternalIP, and
// probes on its loopback.
const (
	StatusPort = 7773
	ProbePort  = 7774
)

// Agent is semaphore-wireguard on one node. It starts an engine where it needs one and
// none answers, as it does outside of a pod; with StartEngine it waits for that one.
type Agent struct {
	*Program
	engine *sandbox.Process
}

// PrepareAgent creates an agent without starting it. The clusters need Grant.
func PrepareAgent(ctx context.Context, binary string, node *testbed.Node, remotes ...*testbed.Cluster) (*Agent, error) {
	p, err := Prepare(ctx, Config{
		Name: WireGuard, Replica: "agent", Binary: binary, Port: StatusPort, ProbePort: ProbePort,
	}, node, remotes...)
	if err != nil {
		return nil, err
	}
	// As in our manifest, and not all addresses.
	delete(p.Env, "SEMAPHORE_LISTEN_ADDRESS")
	if addresses := node.Addresses(); len(addresses) > 0 {
		p.Env["SEMAPHORE_HOST_IP"] = addresses[0].String()
	}
	if text := SubnetMap(node.Cluster); text != "" {
		p.Env["SEMAPHORE_POD_SUBNETS_MAP"] = text
	}
	p.Env["SEMAPHORE_NODE_NAME"] = node.Name
	p.Env["SEMAPHORE_POD_NAME"], p.Env["SEMAPHORE_POD_UID"] = PodName(node), node.Name
	return &Agent{Program: p}, nil
}

// SubnetMap returns the cluster's setting SEMAPHORE_POD_SUBNETS_MAP, which others have for it as
// well.
func SubnetMap(c *testbed.Cluster) string {
	var pairs []string
	for i, subnet := range c.PodSubnets {
		if virtual := c.VirtualSubnets[i]; virtual != subnet {
			pairs = append(pairs, subnet.String()+"="+virtual.String())
		}
	}
	return strings.Join(pairs, ",")
}

// PodName is the name of the pod of a node's agent.
func PodName(node *testbed.Node) string { return WireGuard + "-" + node.Name }

// StartAgent prepares an agent and starts it.
func StartAgent(ctx context.Context, binary string, node *testbed.Node, remotes ...*testbed.Cluster) (*Agent, error) {
	a, err := PrepareAgent(ctx, binary, node, remotes...)
	if err != nil {
		return nil, err
	}
	err = a.Start()
	return a, err
}

// PIDs returns the ids of the agent's process and of those of the engine on its node,
// which serves its devices and outlives it.
func (a *Agent) PIDs() ([]int, error) {
	engine, err := a.Node.Space().PIDs(Engine)
	return append([]int{a.Process().PID()}, engine...), err
}

// StartEngine starts the engine as in our manifest, beside the agent, which waits for it from
// its next start on. It continues the devices of the engine that the agent has started. env is additional
// environment.
func (a *Agent) StartEngine(env ...string) error {
	process, err := a.Node.Start(sandbox.Command{
		Name: "engine", Path: filepath.Join(filepath.Dir(a.binary), Engine), Env: append([]string{"SEMAPHORE_LOG_FORMAT=text"}, env...),
	})
	if err == nil {
		a.engine = process
		a.Env["SEMAPHORE_WG_ENGINE"] = "wait"
	}
	return err
}

// Engine is the process that StartEngine has started, the last one.
func (a *Agent) Engine() *sandbox.Process { return a.engine }

// StopPod ends the agent and then the engine that StartEngine has started, as the
// kubelet ends a pod with a sidecar.
func (a *Agent) StopPod(ctx context.Context) error {
	if err := a.Stop(ctx); err != nil {
		return err
	}
	return a.engine.Stop(ctx)
}

// Cleanup runs "semaphore-wireguard -cleanup" to its end. The agent must have
// been stopped.
func (a *Agent) Cleanup(ctx context.Context) error {
	return runToEnd(ctx, &a.Node.Host, a.command("-cleanup"))
}

// Status is the agent's /status.
type Status struct{ statuspage.Agent }

// Remote returns the report about a remote, or a zero one.
func (s *Status) Remote(name string) statuspage.Remote {
	if r := s.Agent.Remote(name); r != nil {
		return *r
	}
	return statuspage.Remote{}
}

// Link is what stays the same of a remote's device as long as that exists.
func (s *Status) Link(remote string) string {
	d := s.Remote(remote).Device
	return fmt.Sprintf("%s, index %d, %s, key %s %s", d.Name, d.Index, d.Backend, d.PublicKey, d.Error)
}

// Status requests the agent's status.
func (a *Agent) Status(ctx context.Context) (*Status, error) {
	var s Status
	if err := a.Program.Status(ctx, &s); err != nil {
		return nil, err
	}
	return &s, nil
}
