package programs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Agent is semaphore-wireguard on one node.
type Agent struct{ *Program }

// Prepare makes an agent that isn't started.
func (m *Mesh) Prepare(ctx context.Context, node *testbed.Node, remotes ...*testbed.Cluster) (*Agent, error) {
	p, err := Prepare(ctx, ProgramConfig{
		Name: "semaphore-wireguard", Replica: "agent", Binary: m.Binary, Port: StatusPort, ProbePort: ProbePort,
	}, node, remotes...)
	if err != nil {
		return nil, err
	}
	// As our manifest has it, and not all addresses.
	delete(p.Env, "SEMAPHORE_LISTEN_ADDRESS")
	if addresses := node.Addresses(); len(addresses) > 0 {
		p.Env["SEMAPHORE_HOST_IP"] = addresses[0].String()
	}
	p.Env["SEMAPHORE_NODE_NAME"] = node.Name
	p.Env["SEMAPHORE_NAMESPACE"], p.Env["SEMAPHORE_POD_NAME"], p.Env["SEMAPHORE_POD_UID"] = Namespace, PodName(node), node.Name
	return &Agent{p}, nil
}

// PodName is the name of the pod that the agent of a node thinks it is in.
func PodName(node *testbed.Node) string { return "semaphore-wireguard-" + node.Name }

// Start prepares an agent and starts it.
func (m *Mesh) Start(ctx context.Context, node *testbed.Node, remotes ...*testbed.Cluster) (*Agent, error) {
	a, err := m.Prepare(ctx, node, remotes...)
	if err != nil {
		return nil, err
	}
	err = a.Start()
	return a, err
}

// Cleanup runs "semaphore-wireguard -cleanup" to its end. The agent must have
// been stopped.
func (a *Agent) Cleanup(ctx context.Context) error {
	process, err := a.Node.Start(a.command("-cleanup"))
	if err != nil {
		return err
	}
	select {
	case <-process.Done():
		return process.Err()
	case <-ctx.Done():
		process.Kill()
		return ctx.Err()
	}
}

// Status is what we read of the agent's /status.
type Status struct {
	Published bool              `json:"published"`
	Failing   map[string]string `json:"failing"`
	Remotes   []RemoteStatus    `json:"remotes"`
}

// RemoteStatus is one remote in a Status.
type RemoteStatus struct {
	Name    string `json:"name"`
	Refused string `json:"refused"`
	API     struct {
		Synced      bool      `json:"synced"`
		LastContact time.Time `json:"lastContact"`
		Error       string    `json:"error"`
	} `json:"api"`
	Device struct {
		Name      string `json:"name"`
		Index     int    `json:"index"`
		Backend   string `json:"backend"`
		PublicKey string `json:"publicKey"`
		Error     string `json:"error"`
	} `json:"device"`
	Source string       `json:"source"`
	Peers  []PeerStatus `json:"peers"`
	// Rejected are the remote's nodes of which something was rejected.
	Rejected []struct {
		Node    string `json:"node"`
		Reason  string `json:"reason"`
		Detail  string `json:"detail"`
		Partial bool   `json:"partial"`
	} `json:"rejected"`
}

// PeerStatus is one peer in a RemoteStatus.
type PeerStatus struct {
	Node          string         `json:"node"`
	PublicKey     string         `json:"publicKey"`
	Endpoint      string         `json:"endpoint"`
	AllowedIPs    []netip.Prefix `json:"allowedIPs"`
	Health        string         `json:"health"`
	LastHandshake time.Time      `json:"lastHandshake"`
	RxBytes       int64          `json:"rxBytes"`
	TxBytes       int64          `json:"txBytes"`
}

// Remote returns the status of a remote; the zero status when it isn't there.
func (s *Status) Remote(name string) RemoteStatus {
	for i := range s.Remotes {
		if s.Remotes[i].Name == name {
			return s.Remotes[i]
		}
	}
	return RemoteStatus{}
}

// Status asks the agent for its status.
func (a *Agent) Status(ctx context.Context) (*Status, error) {
	body, code, err := a.Ask(ctx, "/status")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("/status of %s: %d %s", a.Node.Name, code, body)
	}
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		return nil, fmt.Errorf("/status of %s: %w", a.Node.Name, err)
	}
	return &s, nil
}
