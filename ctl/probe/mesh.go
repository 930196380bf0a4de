package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// MaxNodes bounds the nodes of a cluster that run pods: the results of a pod must fit into
// its termination message.
const MaxNodes = 10

// serveFor is how long pods serve requests.
const serveFor = 4 * time.Minute

// NodeRef is a node of a cluster.
type NodeRef struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
}

func (p NodeRef) String() string { return p.Cluster + "/" + p.Node }

// Connection is the connection from a pod to an address of a pod of another cluster.
type Connection struct {
	From, To NodeRef
	Address  string
	reach.Try
	// Skipped is the reason for a missing result, or empty.
	Skipped string
}

// Stream is the throughput from one pod to another one.
type Stream struct {
	From, To NodeRef
	reach.Stream
}

// Results are the results of all pods.
type Results struct {
	Connections []Connection
	Streams     []Stream
	Guarded     []Guarded
	Requests    []ServiceTest
	// Refused are the errors with which API servers have refused temporary objects.
	Refused Refusals
}

// Refusals are errors of API servers: one for each node for whose pod they are, or for each
// cluster, if they are for a Service.
type Refusals map[NodeRef]string

// add adds an error, if it is that of an API server, unless there is one.
func (r *Refusals) add(at NodeRef, err error) {
	refusal, is := errors.AsType[*apierrors.StatusError](err)
	if !is || (*r)[at] != "" {
		return
	}
	if *r == nil {
		*r = Refusals{}
	}
	(*r)[at] = printable.Text(refusal.ErrStatus.Message, printable.Short)
}

// Plan selects the tests.
type Plan struct {
	// Nodes is the number of nodes of each cluster that run pods.
	Nodes int
	// Image is the image of the pods; empty: the installed one.
	Image string
	// Patience is how many seconds pods wait for the first response of another one; 0: default.
	Patience int
	// Throughput sends streams between the first pair of pods, for StreamFor seconds, so many at the
	// same time; 0: default.
	Throughput         bool
	StreamFor, Streams int
	// On are the nodes that run pods, by cluster; none: Nodes of all.
	On map[string][]string
	// Asks are the services to ask, by cluster and remote; of a cluster and itself: endpoints
	// that its own pods ask. Fresh adds a temporary Service for each pair of clusters.
	Asks  map[[2]string][]reach.ServiceRequest
	Fresh bool
	// Guards are the network policies to test, by cluster.
	Guards map[string]*Guard
}

// nodes returns the nodes of a cluster that run pods.
func (p *Plan) nodes(f *inspect.Cluster) []string {
	chosen := p.On[f.Name]
	if len(chosen) == 0 {
		return Pick(f.Nodes.Value, min(p.Nodes, MaxNodes))
	}
	return slices.DeleteFunc(Pick(f.Nodes.Value, len(f.Nodes.Value)), func(node string) bool { return !slices.Contains(chosen, node) })
}

// image returns the image for pods of a cluster: by default the installed one, which its
// nodes already have.
func (p *Plan) image(f *inspect.Cluster) (string, error) {
	if image := cmp.Or(p.Image, f.Image()); image != "" {
		return image, nil
	}
	return "", errors.New("Kube-Semaphore isn't installed, so the image is unknown; set it with --image")
}

// server is a pod that serves requests.
type server struct {
	NodeRef
	cluster   int
	image     string
	pod       string   // its name
	addresses []string // by which other clusters know it
	settings  inspect.Settings
	err       error
}

// Mesh tests connections between pods on several nodes of each cluster and those of the
// other clusters. It deletes its pods, also when ctx is done; the error is that of the
// cleanup.
func Mesh(ctx context.Context, clusters []*cli.Cluster, all []*inspect.Cluster, plan Plan) (results *Results, err error) {
	if err := Sweep(ctx, clusters); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, Sweep(ctx, clusters)) }()
	id := rand.String(8)
	servers := serve(ctx, clusters, all, &plan, id)
	var temporary []fresh
	if plan.Fresh {
		temporary = serveFresh(ctx, clusters, servers, func(c, remote string, addresses []string) []string {
			for _, f := range all {
				if f.Name == c {
					return Taken(addresses, f.Settings.Value, remote)
				}
			}
			return nil
		})
	}
	var askers []*asker
	numbers := map[string]int{}
	for i := range servers {
		for j, c := range clusters {
			if j != servers[i].cluster {
				a := newAsker(&servers[i], c.Name, servers, plan.Patience, all[servers[i].cluster].Settings.Value)
				a.plan(&plan, temporary, numbers[servers[i].Cluster])
				askers = append(askers, a)
			}
		}
		numbers[servers[i].Cluster]++
	}
	askers = append(askers, controls(servers, &plan)...)
	var group sync.WaitGroup
	for i, a := range askers {
		if i == 0 && plan.Throughput && len(a.request.Try) > 0 {
			a.request.Stream, a.request.StreamFor, a.request.Streams = a.request.Try[0], plan.StreamFor, plan.Streams
		}
		group.Go(func() { a.ask(ctx, clusters[a.from.cluster]) })
	}
	group.Wait()
	results = &Results{}
	for i := range temporary {
		results.Refused.add(NodeRef{Cluster: temporary[i].from}, temporary[i].err)
	}
	for _, a := range askers {
		a.collect(results)
	}
	// Last, as the policy would deny the other tests.
	results.Guarded, err = guard(ctx, clusters, servers, &plan, id, results.Connections)
	return results, err
}

func serve(ctx context.Context, clusters []*cli.Cluster, all []*inspect.Cluster, plan *Plan, id string) []server {
	var servers []server
	for i, f := range all {
		for _, node := range plan.nodes(f) {
			servers = append(servers, server{NodeRef: NodeRef{f.Name, node}, cluster: i})
		}
	}
	var group sync.WaitGroup
	for i := range servers {
		s := &servers[i]
		group.Go(func() {
			if s.image, s.err = plan.image(all[s.cluster]); s.err == nil {
				s.settings = all[s.cluster].Settings.Value
				s.addresses, s.err = s.start(ctx, clusters[s.cluster], id)
			}
		})
	}
	group.Wait()
	return servers
}

func (s *server) start(ctx context.Context, c *cli.Cluster, id string) ([]string, error) {
	pod := OnNode(s.image, s.Node, reach.Request{ServeFor: int(serveFor.Seconds())})
	pod.Labels[run] = id
	pod, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	s.pod = pod.Name
	if pod, err = Wait(ctx, c, pod, Running); err != nil {
		return nil, err
	}
	return Virtual(Addresses(pod), s.settings), nil
}

// Addresses returns the addresses of a pod, at most one of each family. It drops special
// addresses such as loopback ones, as pods of other clusters will connect to them.
func Addresses(pod *corev1.Pod) []string {
	var all []string
	for _, ip := range pod.Status.PodIPs {
		address, err := endpoint.ParseAddr(ip.IP)
		if err == nil && !has(all, address.String()) {
			all = append(all, address.String())
		}
	}
	return all
}

// Virtual returns the addresses by which other clusters know those of a pod.
func Virtual(addresses []string, settings inspect.Settings) []string {
	m, all := settings.SubnetMap(), slices.Clone(addresses)
	for i, address := range all {
		if ip, err := netip.ParseAddr(address); err == nil {
			all[i] = m.Virtual(ip).String()
		}
	}
	return all
}

// Taken returns the addresses of a remote's pod that a cluster with these settings accepts:
// those in its pod subnets, or all without such a setting.
func Taken(addresses []string, settings inspect.Settings, remote string) []string {
	bounds := settings.Prefixes(cluster.Name(remote), inspect.PodSubnets)
	if len(bounds) == 0 {
		return addresses
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err != nil || !inspect.Cover(bounds, []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())})
	})
}

// asker is a pod that tests the pods of one remote.
type asker struct {
	from        *server
	remote      string
	request     reach.Request
	connections []Connection  // begin with those of the request, in its order
	requests    []ServiceTest // in the order of the request
	skipped     []ServiceTest
	result      *reach.Result
	err         error
}

// newAsker returns an asker on the node of a server. It tests each address of each pod of
// the remote, if the server has an address of the same family.
func newAsker(from *server, remote string, servers []server, patience int, settings inspect.Settings) *asker {
	a := &asker{from: from, remote: remote, request: reach.Request{Map: settings.SubnetMap(), Patience: patience}}
	var without []Connection
	for i := range servers {
		to := &servers[i]
		if to.Cluster != remote {
			continue
		}
		connection := Connection{From: from.NodeRef, To: to.NodeRef}
		shared := false
		taken := Taken(to.addresses, settings, remote)
		for _, address := range taken {
			if has(from.addresses, address) {
				shared, connection.Address = true, address
				a.request.Try, a.connections = append(a.request.Try, address), append(a.connections, connection)
			}
		}
		if !shared {
			connection.Address, connection.Skipped = "", "their pods have no common address family"
			if len(taken) < len(to.addresses) {
				connection.Skipped = fmt.Sprintf("the address %s of its pod is outside the pod subnets of %s in the settings of %s", strings.Join(to.addresses, " and "), remote, from.Cluster)
			}
			for _, s := range []*server{from, to} {
				if s.err != nil {
					connection.Skipped = fmt.Sprintf("no pod runs on %s: %v", s.NodeRef, s.err)
				}
			}
			without = append(without, connection)
		}
	}
	a.connections = append(a.connections, without...)
	return a
}

func has(own []string, address string) bool {
	to, err := netip.ParseAddr(address)
	for _, o := range own {
		if ip, wrong := netip.ParseAddr(o); err == nil && wrong == nil && ip.Is4() == to.Is4() {
			return true
		}
	}
	return false
}

func (a *asker) ask(ctx context.Context, c *cli.Cluster) {
	switch {
	case a.from.err != nil:
		a.err = fmt.Errorf("no pod runs on %s: %w", a.from.NodeRef, a.from.err)
	case len(a.request.Try)+len(a.request.Asks) > 0:
		a.result, a.err = askOne(ctx, c, OnNode(a.from.image, a.from.Node, a.request), &a.request)
	}
}

// collect adds the pod's results.
func (a *asker) collect(results *Results) {
	results.Refused.add(a.from.NodeRef, a.err)
	for i := range a.connections {
		connection := &a.connections[i]
		switch {
		case connection.Skipped != "":
		case a.result != nil:
			connection.Try = a.result.Connections[i]
		default:
			connection.Skipped = fmt.Sprintf("the pod on %s failed: %v", a.from.NodeRef, a.err)
		}
	}
	results.Connections = append(results.Connections, a.connections...)
	a.collectRequests(results)
	if a.request.Stream != "" && a.result != nil && a.result.Streamed != nil {
		results.Streams = append(results.Streams, Stream{a.from.NodeRef, a.connections[0].To, *a.result.Streamed})
	}
}
