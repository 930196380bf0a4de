package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// crowd is a remote cluster of many nodes that have no machine: Node objects
// on a real API server that publish keys and endpoints that don't answer.
type crowd struct {
	local   string // the cluster that they publish for
	nodes   kubernetes.Interface
	members []member
}

// member is one node of a crowd.
type member struct {
	name string
	peer plainPeer
}

// newCrowd creates the nodes. They publish for the cluster of that name. With more than
// one block each they publish so many of their podCIDR, which is then IPv4, too. Their status has
// so many images.
func newCrowd(ctx context.Context, cluster *testbed.Cluster, size int, local string, blocks, images int) (*crowd, error) {
	c := &crowd{local: local, members: make([]member, size)}
	for i := range c.members {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return nil, err
		}
		c.members[i].peer.key = key.PublicKey()
	}
	rest := cluster.RESTConfig()
	// The fastest form of whole nodes.
	rest.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	var err error
	if c.nodes, err = kubernetes.NewForConfig(rest); err != nil {
		return nil, err
	}
	return c, cluster.AddObjects(ctx, size, func(i int, node *corev1.Node) {
		m := &c.members[i]
		m.name = node.Name
		m.peer.endpoint = netip.AddrPortFrom(internalIP(node), plainPort)
		for _, cidr := range node.Spec.PodCIDRs {
			m.peer.allowedIPs = append(m.peer.allowedIPs, netip.MustParsePrefix(cidr))
		}
		if blocks > 1 {
			m.peer.allowedIPs = blocksOf(m.peer.allowedIPs[0], blocks)
		}
		node.Annotations = map[string]string{
			peers.PublicKeyAnnotation(local): m.peer.key.String(),
			peers.EndpointAnnotation(local):  m.peer.endpoint.String(),
			peers.PodCIDRsAnnotation:         m.published(),
		}
		if images > 0 {
			measure.Fill(node, images)
		}
	})
}

// blockBits is the length of a block as Calico makes them.
const blockBits = 26

// blocksOf returns the first blocks of an IPv4 prefix.
func blocksOf(whole netip.Prefix, count int) (blocks []netip.Prefix) {
	first := whole.Addr().As4()
	for i := range count {
		addr := first
		addr[3] += byte(i << (32 - blockBits))
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4(addr), blockBits))
	}
	return blocks
}

// published is the member's annotation of prefixes.
func (m *member) published() string {
	texts := make([]string, 0, len(m.peer.allowedIPs))
	for _, p := range m.peer.allowedIPs {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// publish publishes the prefixes of node i.
func (c *crowd) publish(ctx context.Context, i int) error {
	m := &c.members[i]
	return c.annotate(ctx, m.name, peers.PodCIDRsAnnotation, m.published())
}

func internalIP(node *corev1.Node) netip.Addr {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return netip.MustParseAddr(a.Address)
		}
	}
	return netip.Addr{}
}

// peers returns what a device that talks to the crowd holds.
func (c *crowd) peers() []plainPeer {
	all := make([]plainPeer, 0, len(c.members))
	for _, m := range c.members {
		all = append(all, m.peer)
	}
	return all
}

// list reads all nodes once, as any client would, and returns how long it took.
func (c *crowd) list(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	nodes, err := c.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	if len(nodes.Items) != len(c.members) {
		return 0, fmt.Errorf("the API server has %d nodes, expected %d", len(nodes.Items), len(c.members))
	}
	return time.Since(start), nil
}

// move gives node i another endpoint: the next port.
func (c *crowd) move(ctx context.Context, i int) error {
	m := &c.members[i]
	m.peer.endpoint = netip.AddrPortFrom(m.peer.endpoint.Addr(), m.peer.endpoint.Port()+1)
	return c.annotate(ctx, m.name, peers.EndpointAnnotation(c.local), m.peer.endpoint.String())
}

// rotate gives node i another key.
func (c *crowd) rotate(ctx context.Context, i int) error {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return err
	}
	m := &c.members[i]
	m.peer.key = key.PublicKey()
	return c.annotate(ctx, m.name, peers.PublicKeyAnnotation(c.local), m.peer.key.String())
}

func (c *crowd) annotate(ctx context.Context, node, name, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: value}}})
	if err != nil {
		return err
	}
	_, err = c.nodes.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// beat updates the status of node i as a kubelet does that has nothing to
// report: the condition's time.
func (c *crowd) beat(ctx context.Context, i int) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"conditions": []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
		}},
	}})
	if err != nil {
		return err
	}
	_, err = c.nodes.CoreV1().Nodes().Patch(ctx, c.members[i].name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// A kubelet reports every 5 minutes when nothing changes; that it is alive it
// says with leases, which no other program watches (nodeStatusReportFrequency of the
// KubeletConfiguration).
const statusReports = 5 * time.Minute

// live lets the crowd's kubelets report for a while and returns how often they
// did.
func (c *crowd) live(ctx context.Context, d time.Duration) (int, error) {
	return pace(ctx, statusReports/time.Duration(len(c.members)), d, func(i int) error {
		return c.beat(ctx, i%len(c.members))
	})
}

// pace calls do with 0, 1 and so on at that interval, whether or not earlier
// calls have returned, for a while. It returns the number of calls, after all
// have returned; those under way at the end are waited for.
func pace(ctx context.Context, interval, d time.Duration, do func(i int) error) (calls int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ; ; calls++ {
		select {
		case <-ctx.Done():
			wg.Wait()
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				errs = append(errs, cause)
			}
			return calls, errors.Join(errs...)
		case <-ticker.C:
		}
		i := calls
		wg.Go(func() {
			if err := do(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
}
