// Package testbed builds Kubernetes clusters on one machine. Each cluster has a real etcd and
// kube-apiserver. Nodes are network and mount namespaces on a flat underlay, pods are
// namespaces behind their node, and agents are processes of a built binary in a node.
// Methods of the types inject faults. The caller chooses the node of a pod, unless the
// cluster has a scheduler and the node a kubelet, which runs pods with containerd.
//
//	          underlay: bridge, 10.66.0.0/16 and fd00:66::/64, doesn't forward
//	 ┌──────────┬─────────┴─┬───────────┬───────────┐
//	aws API   aws node    aws node    gcp API     gcp node
//	          eth0                                eth0
//	          cni0 bridge, first address of the podCIDR
//	          pods
//
// A testbed exists only inside its own namespaces, so that several testbeds on one machine
// don't affect each other or the machine. When the process that created it ends, even if it
// is killed, the kernel removes the namespaces. A folder of files and the empty control
// groups of nodes with a kubelet remain; the next testbed removes them.
//
// Linux only. Needs root, nft and ip.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Config says what a testbed is made of.
type Config struct {
	// Tools holds the binaries: tools.Etcd and tools.KubeAPIServer at least.
	// tools.Kubectl is needed by Apply for kustomizations and by Kubectl.
	Tools tools.Binaries
	// Dir is the folder for the testbed's own folder. Default: /dev/shm, which
	// is memory, or the system's folder for temporary files.
	Dir string
	// Underlay lists the prefixes that are on the link between the nodes. The
	// first of each family also holds the API servers. Default: 10.66.0.0/16,
	// 10.22.0.0/16, fd00:66::/64.
	Underlay []netip.Prefix
	// Logger logs the testbed's actions. Default: none.
	Logger *slog.Logger
}

// Testbed is a set of clusters on one underlay.
type Testbed struct {
	config   Config
	log      *slog.Logger
	state    *state
	underlay *underlay
	publicCA *authority
	pings    atomic.Uint32

	mu       sync.Mutex
	closed   bool
	clusters []*Cluster
	captures []*Capture
}

// New creates the underlay. Clusters come with StartCluster. It also removes
// the files of testbeds whose process died.
func New(cfg Config) (*Testbed, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Underlay) == 0 {
		cfg.Underlay = []netip.Prefix{
			netip.MustParsePrefix("10.66.0.0/16"),
			netip.MustParsePrefix("10.22.0.0/16"),
			netip.MustParsePrefix("fd00:66::/64"),
		}
	}
	var errs []error
	for _, program := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("testbed needs nftables and iproute2: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	tb := &Testbed{config: cfg, log: cfg.Logger}
	if err := tb.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("create testbed: %w", err), tb.Close())
	}
	return tb, nil
}

func (tb *Testbed) create() (err error) {
	if tb.state, err = newState(tb.config.Dir, tb.log); err != nil {
		return err
	}
	if tb.publicCA, err = newAuthority("testbed public"); err != nil {
		return err
	}
	if err := os.WriteFile(tb.PublicCAFile(), tb.publicCA.pem, 0o644); err != nil {
		return err
	}
	tb.underlay, err = newUnderlay(tb.config.Underlay)
	return err
}

// Dir is the testbed's folder. Logs are in its folder logs.
func (tb *Testbed) Dir() string { return tb.state.dir }

// LogPath is the log file of a program of the testbed, such as
// "aws-kube-apiserver".
func (tb *Testbed) LogPath(name string) string {
	return filepath.Join(tb.state.dir, "logs", name+".log")
}

// PublicCAFile contains the CA of the servers behind Cluster.CAURL. It replaces the CAs that
// a machine trusts; pass it to an agent as SSL_CERT_FILE.
func (tb *Testbed) PublicCAFile() string {
	return filepath.Join(tb.state.dir, "public-ca.crt")
}

// Clusters returns the clusters in the order of their start.
func (tb *Testbed) Clusters() []*Cluster {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return slices.Clone(tb.clusters)
}

// StartClusters starts several clusters at the same time and returns them in
// the order of their configurations. When one fails, the testbed is still to be
// closed.
func (tb *Testbed) StartClusters(ctx context.Context, configs ...ClusterConfig) ([]*Cluster, error) {
	clusters := make([]*Cluster, len(configs))
	errs := make([]error, len(configs))
	var wg sync.WaitGroup
	for i, cfg := range configs {
		// Registered here, so that the order decides on default addresses.
		c, err := tb.newCluster(cfg)
		if err != nil {
			errs[i] = err
			continue
		}
		clusters[i] = c
		wg.Go(func() { errs[i] = c.start(ctx) })
	}
	wg.Wait()
	return clusters, errors.Join(errs...)
}

// StartCluster starts a control plane and returns when its API server is ready,
// which takes some seconds.
func (tb *Testbed) StartCluster(ctx context.Context, cfg ClusterConfig) (*Cluster, error) {
	clusters, err := tb.StartClusters(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return clusters[0], nil
}

// Close ends all processes and removes everything. It may be called twice.
func (tb *Testbed) Close() error {
	tb.mu.Lock()
	closed, clusters, captures := tb.closed, tb.clusters, tb.captures
	tb.closed, tb.clusters, tb.captures = true, nil, nil
	tb.mu.Unlock()
	if closed {
		return nil
	}

	var errs []error
	for _, capture := range captures {
		errs = append(errs, capture.Close())
	}
	for _, c := range clusters {
		errs = append(errs, c.close())
	}
	if tb.underlay != nil {
		errs = append(errs, tb.underlay.close())
	}
	if tb.state != nil {
		errs = append(errs, removeGroups(filepath.Join(tb.state.dir, groupsFile)), tb.state.remove())
	}
	return errors.Join(errs...)
}

// Wait polls the condition until it returns nil: every 20 ms at first, and then less often, so
// that the delay is at most a sixteenth of the time, and 200 ms, and polling uses little
// processor time. When ctx ends first the error contains the description and the condition's
// last error.
func Wait(ctx context.Context, what string, condition func(context.Context) error) error {
	began := time.Now()
	var before error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); before == nil || cause == nil || !errors.Is(err, cause) && !errors.Is(err, ctx.Err()) {
			before = err // The error of a condition that ctx has interrupted doesn't count.
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), before)
		case <-time.After(min(max(20*time.Millisecond, time.Since(began)/16), 200*time.Millisecond)):
		}
	}
}
