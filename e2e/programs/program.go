package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// The programs of cmd/ that run in clusters.
const (
	WireGuard     = "semaphore-wireguard"
	Engine        = "semaphore-engine"
	ServiceMirror = "semaphore-service-mirror"
	Policy        = "semaphore-policy"
	Relay         = "semaphore-relay"
	Tokens        = "semaphore-tokens"
)

// Namespace is that of our manifests.
const Namespace = "sys-semaphore"

// Program is one of our programs on a node, as it runs in a pod: with the service account,
// the environment and the rights of our manifests.
type Program struct {
	// Name is that of its log and, by default, of the accounts of our manifests.
	Name string
	Node *testbed.Node
	// Local are the credentials for its own cluster, Remote those for each of
	// the others, by name.
	Local  *testbed.Credentials
	Remote map[string]*testbed.Credentials
	// Env are its settings. Changes apply at the next start.
	Env map[string]string

	host      *testbed.Host // the node, or a pod on it
	binary    string
	probePort int             // port on the loopback
	mounts    []sandbox.Mount // besides that of the account
	process   *sandbox.Process
}

// Grant applies a program's rights in its own cluster, and those of neighbours, as an operator
// does.
func Grant(ctx context.Context, program string, clusters ...*testbed.Cluster) error {
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	folder := strings.TrimPrefix(program, "semaphore-")
	remote := strings.TrimPrefix(neighbour(program), "semaphore-")
	for _, c := range clusters {
		for _, manifest := range []string{"wireguard/namespace.yaml", folder + "/rbac.yaml", "remote/" + remote + ".yaml"} {
			if err := c.Apply(ctx, filepath.Join(root, "deploy", manifest)); err != nil {
				return fmt.Errorf("apply deploy/%s to %s: %w", manifest, c.Name, err)
			}
		}
	}
	return nil
}

// neighbour returns the program with whose account one reads other clusters.
func neighbour(program string) string {
	if program == Relay {
		return WireGuard
	}
	return program
}

// Config describes the program to prepare.
type Config struct {
	// Name is the program's: Policy. Its accounts are
	// sys-semaphore/<name> in its own cluster and sys-semaphore/<name>-remote in
	// the others, for Relay that of WireGuard.
	Name string
	// Replica distinguishes several of one node; it names the log. Default: Name.
	Replica string
	// Binary is the path of the program.
	Binary string
	// Port is its port for metrics and status.
	Port int
	// ProbePort is its port for probes, and for all pages on the loopback. Default: Port +
	// 1000.
	ProbePort int
}

// Prepare creates a program on a node without starting it. The clusters need Grant. The
// service mirror writes its mirrors in Namespace.
func Prepare(ctx context.Context, cfg Config, node *testbed.Node, remotes ...*testbed.Cluster) (*Program, error) {
	if cfg.Replica == "" {
		cfg.Replica = cfg.Name
	}
	if cfg.ProbePort == 0 {
		cfg.ProbePort = cfg.Port + 1000
	}
	p := &Program{Name: cfg.Replica, Node: node, Remote: map[string]*testbed.Credentials{}, host: &node.Host, binary: cfg.Binary, probePort: cfg.ProbePort}
	var err error
	if p.Local, err = node.Cluster.Credentials(ctx, Namespace, cfg.Name); err != nil {
		return nil, err
	}
	var names []string
	p.Env = map[string]string{
		"HOSTNAME":                 cfg.Replica,
		"SEMAPHORE_CLUSTER_NAME":   node.Cluster.Name,
		"SEMAPHORE_NAMESPACE":      Namespace,
		"SEMAPHORE_LISTEN_ADDRESS": fmt.Sprintf(":%d", cfg.Port),
		"SEMAPHORE_PROBE_ADDRESS":  fmt.Sprintf("127.0.0.1:%d", cfg.ProbePort),
		"SEMAPHORE_LOG_FORMAT":     "text",
	}
	for _, r := range remotes {
		credentials, err := r.Credentials(ctx, Namespace, neighbour(cfg.Name)+"-remote")
		if err != nil {
			return nil, err
		}
		p.Remote[r.Name] = credentials
		names = append(names, r.Name)
		var subnets []string
		for _, s := range r.VirtualSubnets {
			subnets = append(subnets, s.String())
		}
		prefix := Variable(r.Name, "")
		p.Env[prefix+"API_URL"] = r.APIURL()
		p.Env[prefix+"CA_FILE"] = r.CAFile()
		p.Env[prefix+"TOKEN_FILE"] = credentials.TokenFile()
		p.Env[prefix+"POD_SUBNETS"] = strings.Join(subnets, ",")
		if text := SubnetMap(r); text != "" {
			p.Env[prefix+"POD_SUBNETS_MAP"] = text
		}
	}
	p.Env["SEMAPHORE_REMOTES"] = strings.Join(names, ",")
	return p, nil
}

// Variable returns the name of a setting of one remote.
func Variable(remote, name string) string {
	return "SEMAPHORE_REMOTE_" + strings.ToUpper(strings.ReplaceAll(remote, "-", "_")) + "_" + name
}

// Start starts the process.
func (p *Program) Start() error {
	if p.process != nil && p.process.Running() {
		return fmt.Errorf("%s runs already on %s", p.Name, p.Node.Name)
	}
	process, err := p.host.Start(p.command())
	if err != nil {
		return err
	}
	p.process = process
	return nil
}

func (p *Program) command(args ...string) sandbox.Command {
	mount, env := p.Local.InCluster()
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		env = append(env, name+"="+p.Env[name])
	}
	return sandbox.Command{Name: p.Name, Path: p.binary, Args: args, Env: env, Mounts: append(slices.Clone(p.mounts), mount)}
}

// runToEnd runs a command on a machine to its end, or kills it when ctx ends.
func runToEnd(ctx context.Context, host *testbed.Host, command sandbox.Command) error {
	process, err := host.Start(command)
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

// Process is the program's process, the last one.
func (p *Program) Process() *sandbox.Process { return p.process }

// Kill ends the program as kill -9 does.
func (p *Program) Kill() { p.process.Kill() }

// Stop ends the program as the kubelet does. An exit code other than 0 is an
// error.
func (p *Program) Stop(ctx context.Context) error { return p.process.Stop(ctx) }

// Ready requests /readyz; nil if the program is ready.
func (p *Program) Ready(ctx context.Context) error { return p.probe(ctx, "/readyz") }

// Healthy requests /healthz; nil if the program is healthy.
func (p *Program) Healthy(ctx context.Context) error { return p.probe(ctx, "/healthz") }

func (p *Program) probe(ctx context.Context, path string) error {
	body, code, err := p.Ask(ctx, path)
	if err == nil && code != http.StatusOK {
		err = errors.New(strings.TrimSpace(body))
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", path, p.Node.Name, err)
	}
	return nil
}

// Metrics returns the text of /metrics.
func (p *Program) Metrics(ctx context.Context) (string, error) { return p.Get(ctx, "/metrics") }

// Status reads /status into what it points to.
func (p *Program) Status(ctx context.Context, into any) error {
	body, err := p.Get(ctx, "/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), into)
	}
	if err != nil {
		return fmt.Errorf("status of %s: %w", p.Node.Name, err)
	}
	return nil
}

// Leads reports whether this replica is the leader.
func (p *Program) Leads(ctx context.Context) (bool, error) {
	var status struct{ Leading bool }
	err := p.Status(ctx, &status)
	return status.Leading, err
}

// Get requests a path such as /metrics. A response other than 200 is an error with its text.
func (p *Program) Get(ctx context.Context, path string) (string, error) {
	body, code, err := p.Ask(ctx, path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s of %s: %d %s", path, p.Name, code, body)
	}
	return body, err
}

// Ask makes a request for a path such as /metrics, from the program's own node,
// and returns body and status of the answer.
func (p *Program) Ask(ctx context.Context, path string) (body string, code int, err error) {
	transport := &http.Transport{DialContext: p.host.Dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", p.probePort, path), http.NoBody)
	if err != nil {
		return "", 0, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return string(data), response.StatusCode, err
}
