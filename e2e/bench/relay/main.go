// Command relay measures what agents cost API servers: those that watch Nodes, and those that
// watch the objects of semaphore-relay. Two real API servers serve many watchers, one kind
// after the other in the same run:
//
//	go run ./e2e/bench/relay                            # some 15 minutes
//	go run ./e2e/bench/relay -watchers 50 -nodes 500    # a few
//
// It prints bytes and processor time of the API server for each change and watcher, for the
// first read, and for the restart of the API server with all watchers, and what that would be
// for larger clusters. Linux only, needs root. Nothing is left behind.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

type options struct {
	watchers, nodes, images int
	changes                 int
	rate                    int
	json                    string
}

func main() {
	var opts options
	flag.IntVar(&opts.watchers, "watchers", 200, "watchers of each kind")
	flag.IntVar(&opts.nodes, "nodes", 2000, "Nodes of the remote cluster")
	flag.IntVar(&opts.images, "images", 50, "images in the status of each")
	flag.IntVar(&opts.changes, "changes", 200, "changes for each kind")
	flag.IntVar(&opts.rate, "rate", 5, "changes a second; the relay writes at most 5")
	flag.StringVar(&opts.json, "json", "", "file to append the figures to, one JSON object per line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// kind is what watchers of one kind request.
type kind struct {
	name    string
	path    string
	accept  string
	cluster *testbed.Cluster
	token   string
	// change makes the nth change of a node.
	change func(ctx context.Context, n int) error
}

// bench is one run.
type bench struct {
	options
	*measure.Stage
	table   *tabwriter.Writer
	results []measure.Result
	memory  float64 // of the relay, at most, in bytes
}

func run(ctx context.Context, opts options) (err error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	b := &bench{options: opts, table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	relay := filepath.Join(root, "deploy", "relay")
	namespace := filepath.Join(root, "deploy", "wireguard", "namespace.yaml")
	if b.Stage, err = measure.NewStage(ctx, programs.Relay, "aws", "gcp", namespace, filepath.Join(relay, "crd.yaml")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	err = b.measure(ctx)
	return errors.Join(err, measure.Append(opts.json, "./e2e/bench/relay", b.results))
}

func (b *bench) measure(ctx context.Context) error {
	measure.Say("creating %d nodes with %d images", b.nodes, b.images)
	err := testbed.InParallel(ctx, b.nodes, func(ctx context.Context, i int) error {
		_, err := b.Remote.Client().CoreV1().Nodes().Create(ctx, b.node(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := b.Program.Start(); err != nil {
		return err
	}
	if err := b.stored(ctx); err != nil {
		return err
	}
	var tokens [2]string
	for i, of := range []struct {
		cluster *testbed.Cluster
		rule    rbacv1.PolicyRule
	}{
		{b.Remote, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}}},
		{b.Local, rbacv1.PolicyRule{APIGroups: []string{"semaphore.uw.io"}, Resources: []string{v1alpha1.Resource}, Verbs: []string{"list", "watch"}}},
	} {
		cfg, err := measure.Client(ctx, of.cluster, programs.Namespace, "watchers", of.rule)
		if err != nil {
			return err
		}
		token, err := os.ReadFile(cfg.BearerTokenFile)
		if err != nil {
			return err
		}
		tokens[i] = string(token)
	}
	const metadata = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	objects := "/apis/" + v1alpha1.GroupVersion().String() + "/namespaces/" + programs.Namespace + "/" + v1alpha1.Resource
	var all []figures
	for _, k := range []kind{
		{"Nodes, JSON", "/api/v1/nodes", "application/json", b.Remote, tokens[0], b.heartbeat},
		{"Nodes, protobuf", "/api/v1/nodes", "application/vnd.kubernetes.protobuf", b.Remote, tokens[0], b.heartbeat},
		{"metadata of Nodes, JSON", "/api/v1/nodes", "application/json" + metadata, b.Remote, tokens[0], b.heartbeat},
		{"metadata of Nodes, protobuf", "/api/v1/nodes", "application/vnd.kubernetes.protobuf" + metadata, b.Remote, tokens[0], b.heartbeat},
		{"wireguardpeers, JSON", objects, "application/json", b.Local, tokens[1], b.move},
	} {
		f, err := b.kind(ctx, &k)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		all = append(all, f)
		b.results = append(b.results, f.results()...)
	}
	b.print(all)
	fmt.Fprintf(b.table, "\nmemory of semaphore-relay, at most\t%.0f MB\n", b.memory/1e6)
	b.results = append(b.results, measure.Alone("memory of semaphore-relay", "B", b.memory))
	return b.table.Flush()
}

// name returns the name of node i.
func name(i int) string { return fmt.Sprintf("ip-10-4-%d-%d.eu-west-1.compute.internal", i>>8, i&255) }

// node returns a Node as large as one of a real cluster, which is a peer.
func (b *bench) node(i int) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name(i), Annotations: published(i, 0), Labels: map[string]string{
			"kubernetes.io/hostname": name(i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"topology.kubernetes.io/zone": "eu-west-1a", "node.kubernetes.io/instance-type": "m7i.4xlarge",
		}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("198.18.%d.%d", i>>8, i&255)}, {Type: corev1.NodeHostName, Address: name(i)},
		}},
	}
	measure.Fill(node, b.images)
	return node
}

// published are the annotations of node i after its change number n.
func published(i, n int) map[string]string {
	return map[string]string{
		peers.PublicKeyAnnotation("aws"): tunnel.Key{1, byte(i), byte(i >> 8)}.String(),
		peers.EndpointAnnotation("aws"):  fmt.Sprintf("198.18.%d.%d:%d", i>>8, i&255, 1024+n),
		peers.PodCIDRsAnnotation:         fmt.Sprintf("100.%d.%d.0/24", 64+i>>8, i&255),
	}
}

func (b *bench) patch(ctx context.Context, n int, of any, subresources ...string) error {
	patch, err := json.Marshal(of)
	if err != nil {
		return err
	}
	_, err = b.Remote.Client().CoreV1().Nodes().Patch(ctx, name((n*37)%b.nodes), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
	return err
}

// heartbeat is what a kubelet writes every five minutes.
func (b *bench) heartbeat(ctx context.Context, n int) error {
	return b.patch(ctx, n, map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "lastHeartbeatTime": time.Now().Add(time.Duration(n) * time.Second).UTC().Format(time.RFC3339)},
	}}}, "status")
}

// move is what an agent publishes when its node has another endpoint.
func (b *bench) move(ctx context.Context, n int) error {
	return b.patch(ctx, n, map[string]any{"metadata": map[string]any{"annotations": published((n*37)%b.nodes, n+1)}})
}

// stored waits until the relay leads, and has stored all nodes. Like a pod, it is started again
// when it has ended, because it lost its lease with the API server.
func (b *bench) stored(ctx context.Context) error {
	began := time.Now()
	err := testbed.Wait(ctx, "the relay to store all nodes", func(ctx context.Context) error {
		if !b.Program.Process().Running() {
			if err := b.Program.Start(); err != nil {
				return err
			}
		}
		var st statuspage.Relay
		if err := b.Program.Status(ctx, &st); err != nil {
			return err
		}
		for i := range st.Clusters {
			if c := &st.Clusters[i]; c.Name == b.Remote.Name && c.Nodes == b.nodes && c.Incomplete == "" && c.Pending == 0 && st.Leading && c.API.Error == "" && st.Objects.Error == "" {
				measure.Say("%d nodes are in %d objects after %v", c.Nodes, c.Objects, time.Since(began).Round(time.Second))
				return nil
			}
		}
		return errors.New("not yet")
	})
	return err
}
