package testbed

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/processtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Ports of a control plane on its underlay addresses.
const (
	apiPort = "6443"
	caPort  = "8443"
)

// issuer is the issuer of service account tokens.
const issuer = "https://kubernetes.default.svc.cluster.local"

// oneProcessor limits a Go program to one processor: an API server then uses a tenth less
// processor time, and etcd a quarter, as idle processors don't search for work.
var oneProcessor = []string{"GOMAXPROCS=1"}

// controlPlane is the machine that runs etcd and kube-apiserver. As it has a
// namespace of its own, ports never collide.
type controlPlane struct {
	cluster   *Cluster
	name      string
	addresses []netip.Addr
	config    ClusterConfig

	space    *sandbox.Space
	ca       *authority
	admin    keyPair
	tokenKey *ecdsa.PrivateKey // signs service account tokens
	caServer *http.Server

	mu   sync.Mutex
	etcd *sandbox.Process
	api  *sandbox.Process
}

func newControlPlane(c *Cluster, addresses []netip.Addr, cfg ClusterConfig) *controlPlane {
	return &controlPlane{
		cluster:   c,
		name:      c.Name + "-control-plane",
		addresses: addresses,
		config:    cfg,
	}
}

// create makes the machine, keys and certificates. Nothing of Kubernetes runs
// yet.
func (p *controlPlane) create(ctx context.Context) (err error) {
	if p.space, err = sandbox.New(p.name); err != nil {
		return err
	}
	if err := p.cluster.tb.underlay.attach(p.name, p.space, p.addresses); err != nil {
		return err
	}
	if err := p.createCredentials(); err != nil {
		return err
	}
	return p.serveCA(ctx)
}

func (p *controlPlane) createCredentials() (err error) {
	if p.ca, err = newAuthority(p.cluster.Name); err != nil {
		return err
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, address := range p.addresses {
		ips = append(ips, address.AsSlice())
	}
	for _, subnet := range p.cluster.ServiceSubnets {
		ips = append(ips, nth(subnet, 1).AsSlice())
	}
	serving, err := p.ca.serving([]string{"kubernetes.default.svc", "kubernetes", "kubernetes.default", "localhost"}, ips)
	if err != nil {
		return err
	}
	if p.admin, err = p.ca.client("testbed-admin", "system:masters"); err != nil {
		return err
	}
	if p.tokenKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return fmt.Errorf("generate the key of service account tokens: %w", err)
	}
	private, err := encodeKey(p.tokenKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(p.tokenKey.Public())
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(p.cluster.CAFile(), p.ca.pem, 0o644),
		serving.write(p.file("serving")),
		p.admin.write(p.file("admin")),
		os.WriteFile(p.file("service-account.key"), private, 0o600),
		os.WriteFile(p.file("service-account.pub"), encodePEM("PUBLIC KEY", public), 0o644),
	)
}

func (p *controlPlane) file(name string) string { return filepath.Join(p.cluster.dir, name) }

// serveCA serves the CA certificate under the testbed's public CA.
func (p *controlPlane) serveCA(ctx context.Context) error {
	var ips []net.IP
	for _, address := range p.addresses {
		ips = append(ips, address.AsSlice())
	}
	pair, err := p.cluster.tb.publicCA.serving([]string{p.name}, ips)
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return err
	}
	listener, err := p.space.Listen(ctx, "tcp", ":"+caPort)
	if err != nil {
		return err
	}
	p.caServer = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ErrorLog:          slog.NewLogLogger(p.cluster.log.Handler(), slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeFile(w, r, p.cluster.CAFile())
		}),
	}
	go func() {
		// Ends with ErrServerClosed in close.
		_ = p.caServer.ServeTLS(listener, "", "")
	}()
	return nil
}

func (p *controlPlane) startEtcd() error {
	binary, err := p.cluster.tb.tool(tools.Etcd)
	if err != nil {
		return err
	}
	p.etcd, err = p.space.Start(sandbox.Command{
		Name: p.cluster.Name + "-etcd",
		Path: binary,
		Env:  oneProcessor,
		Log:  p.cluster.tb.LogPath(p.cluster.Name + "-etcd"),
		Args: []string{
			"--name=default",
			"--data-dir=" + p.file("etcd"),
			"--listen-client-urls=http://127.0.0.1:2379",
			"--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
			"--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380",
			"--unsafe-no-fsync",
			"--quota-backend-bytes=8589934592",
			"--log-level=warn",
		},
	})
	return err
}

// apiArgs are the arguments of kube-apiserver.
func (p *controlPlane) apiArgs() []string {
	var services []string
	for _, subnet := range p.cluster.ServiceSubnets {
		services = append(services, subnet.String())
	}
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--secure-port=" + apiPort,
		"--bind-address=::",
		"--advertise-address=" + p.addresses[0].String(),
		"--tls-cert-file=" + p.file("serving.crt"),
		"--tls-private-key-file=" + p.file("serving.key"),
		"--client-ca-file=" + p.cluster.CAFile(),
		"--service-cluster-ip-range=" + strings.Join(services, ","),
		"--service-account-issuer=" + issuer,
		"--service-account-signing-key-file=" + p.file("service-account.key"),
		"--service-account-key-file=" + p.file("service-account.pub"),
		"--service-account-max-token-expiration=" + lifetime.String(),
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--profiling=false",
	}
	if p.config.Controllers {
		// Kubelets are reached by address, as names of nodes aren't resolved, and
		// authenticate the API server: for kubectl exec and logs.
		args = append(args, "--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate="+p.file("admin.crt"), "--kubelet-client-key="+p.file("admin.key"))
	} else {
		// Without a controller manager no namespace has a default service
		// account, and this plugin refuses pods that have none.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return append(args, p.config.APIServerArgs...)
}

// StartAPI starts kube-apiserver and returns when it is ready.
func (c *Cluster) StartAPI(ctx context.Context) error {
	p := c.plane
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.api != nil && p.api.Running() {
		return nil
	}
	binary, err := c.tb.tool(tools.KubeAPIServer)
	if err != nil {
		return err
	}
	name := c.Name + "-kube-apiserver"
	p.api, err = p.space.Start(sandbox.Command{Name: name, Path: binary, Args: p.apiArgs(), Env: oneProcessor, Log: c.tb.LogPath(name)})
	if err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = Wait(ctx, "the API server of "+c.Name, func(ctx context.Context) error {
		for _, process := range []*sandbox.Process{p.etcd, p.api} {
			if !process.Running() {
				cancel() // It has exited.
				return fmt.Errorf("%s ended: %w\n%s", process.Command().Name, process.Err(), process.Tail(10))
			}
		}
		_, err := c.discovery.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	if err != nil {
		return err
	}
	c.log.Info("API server is ready", "url", c.APIURL(), "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// ControlPlane returns the ids of the processes of etcd and kube-apiserver.
func (c *Cluster) ControlPlane() (etcd, api int) {
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	return c.plane.etcd.PID(), c.plane.api.PID()
}

// StopAPI kills kube-apiserver: connections break, new ones are refused.
func (c *Cluster) StopAPI() {
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	if c.plane.api != nil {
		c.plane.api.Kill()
		c.log.Info("API server killed")
	}
}

// PauseAPI stops kube-apiserver: connections stay open without answers.
func (c *Cluster) PauseAPI() error {
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	c.log.Info("API server stopped")
	return processtest.Stop(c.plane.api.PID())
}

// ResumeAPI undoes PauseAPI.
func (c *Cluster) ResumeAPI() error {
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	c.log.Info("API server goes on")
	return c.plane.api.Signal(syscall.SIGCONT)
}

// Backup saves a snapshot of etcd, as "etcdctl snapshot save" does, and returns its path. A copy of
// its files lacks what was written in the last 100 ms: that is only in the log, which a restoration
// doesn't read.
func (c *Cluster) Backup(ctx context.Context) (path string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:2379/v3/maintenance/snapshot", strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.plane.space.Dial, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("snapshot of etcd of %s: %s", c.Name, res.Status)
	}
	file, err := os.CreateTemp(c.dir, "backup-*.db")
	if err != nil {
		return "", err
	}
	for parts := json.NewDecoder(res.Body); err == nil; {
		var part struct {
			Result struct{ Blob []byte }
			Error  struct{ Message string }
		}
		if err = parts.Decode(&part); err == nil && part.Error.Message != "" {
			err = errors.New(part.Error.Message)
		}
		if err == nil {
			_, err = file.Write(part.Result.Blob)
		}
	}
	if !errors.Is(err, io.EOF) {
		return "", errors.Join(fmt.Errorf("snapshot of etcd of %s: %w", c.Name, err), file.Close())
	}
	return file.Name(), file.Close()
}

// RestoreBackup kills the API server and etcd, starts etcd from a backup as docs/operating.md says,
// and returns when the API server is ready.
func (c *Cluster) RestoreBackup(ctx context.Context, backup string) error {
	built, err := tools.Build(ctx, io.Discard, tools.Etcdutl)
	if err != nil {
		return err
	}
	c.StopAPI()
	if err := c.plane.restore(ctx, built[tools.Etcdutl], backup); err != nil {
		return fmt.Errorf("restore a backup of %s: %w", c.Name, err)
	}
	c.log.Info("etcd begins with a backup")
	return c.StartAPI(ctx)
}

func (p *controlPlane) restore(ctx context.Context, etcdutl, backup string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.etcd.Kill()
	data := p.file("etcd")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	restore := exec.CommandContext(ctx, etcdutl, "snapshot", "restore", backup,
		"--bump-revision", "1000000000", "--mark-compacted", "--data-dir", data,
		"--initial-cluster=default=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380")
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("etcdutl: %w\n%s", err, out)
	}
	return p.startEtcd()
}

// CutAPI drops all packets between the API server and the nodes: connections
// hang and new ones aren't answered. The administrator's clients still work.
func (c *Cluster) CutAPI() error {
	c.log.Info("API server cut off from the nodes")
	return c.tb.underlay.isolate(c.plane.name, true)
}

// RestoreAPI undoes CutAPI.
func (c *Cluster) RestoreAPI() error {
	c.log.Info("API server reachable for the nodes again")
	return c.tb.underlay.isolate(c.plane.name, false)
}

func (p *controlPlane) close() error {
	if p.space == nil {
		return nil
	}
	var errs []error
	if p.caServer != nil {
		errs = append(errs, p.caServer.Close())
	}
	return errors.Join(append(errs, p.space.Close())...)
}
