package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// MostNodes is how many nodes of a cluster pods may run on: what a pod that asks as many
// can say must fit into its termination message.
const MostNodes = 10

// serveFor is how long pods wait to be asked.
const serveFor = 4 * time.Minute

// Place is a node of a cluster.
type Place struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
}

func (p Place) String() string { return p.Cluster + "/" + p.Node }

// Leg is what a pod on one node found out of one on another cluster's, at one address.
type Leg struct {
	From, To Place
	Address  string
	reach.Try
	// Untried says why that isn't known; empty: it is.
	Untried string
}

// Name is a name that was resolved in a pod.
type Name struct {
	From   Place
	Remote string
	Name   string
	Found  reach.Name
	// Untried says why that isn't known; empty: it is.
	Untried string
}

// Stream is what was sent from one pod to another one.
type Stream struct {
	From, To Place
	reach.Stream
}

// Tried is all that pods found out.
type Tried struct {
	Legs    []Leg
	Names   []Name
	Streams []Stream
	Guarded []Guarded
}

// Plan says what pods are to try.
type Plan struct {
	// Nodes is how many nodes of each cluster get pods.
	Nodes int
	// Image is that of the pods; empty: the one that is installed.
	Image string
	// Throughput has a stream sent between the first pair of pods.
	Throughput bool
	// Names are resolved by pods, by their cluster and the remote.
	Names map[[2]string][]string
	// Guards are how the pods of clusters are guarded after that, by cluster.
	Guards map[string]*Guard

	// secret is what pods of this run prove to each other that they are; empty: they don't.
	secret reach.Secret
}

// image is the one that pods of a cluster have: the one that its nodes have anyway.
func (p *Plan) image(f *facts.Facts) (string, error) {
	switch {
	case p.Image != "":
		return p.Image, nil
	case f.Installed.Image != "":
		return f.Installed.Image, nil
	}
	return "", errors.New("nothing of ours is installed, so there is no image; --image names one")
}

// alike tells whether pods of all clusters have one image. In the middle of an upgrade one
// image may know nothing of secrets yet, and would pass for a stranger.
func (p *Plan) alike(all []*facts.Facts) bool {
	images := map[string]bool{}
	for _, f := range all {
		image, _ := p.image(f)
		images[image] = true
	}
	return len(images) == 1
}

// server is a pod that waits to be asked.
type server struct {
	Place
	cluster   int
	image     string
	pod       string // its name
	addresses []string
	err       error
}

// Mesh has pods of clusters, on several nodes of each, try those of the other clusters.
// It leaves no pod behind, also when ctx ends before that; an error is about that alone.
func Mesh(ctx context.Context, clusters []*cli.Cluster, all []*facts.Facts, plan Plan) (tried *Tried, err error) {
	if err := Sweep(ctx, clusters); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, Sweep(ctx, clusters)) }()
	id := rand.String(8)
	if plan.alike(all) {
		plan.secret = reach.NewSecret()
	}
	servers := serve(ctx, clusters, all, &plan, id)
	var askers []*asker
	for i := range servers {
		for j, c := range clusters {
			if j != servers[i].cluster {
				askers = append(askers, newAsker(&servers[i], c.Name, servers, &plan, all[servers[i].cluster].Installed.Settings))
			}
		}
	}
	var group sync.WaitGroup
	for i, a := range askers {
		if i == 0 && plan.Throughput && len(a.request.Try) > 0 {
			a.request.Stream = a.request.Try[0]
		}
		group.Go(func() { a.ask(ctx, clusters[a.from.cluster]) })
	}
	group.Wait()
	tried = &Tried{}
	for _, a := range askers {
		a.tell(tried)
	}
	// When nobody else tries those that are guarded.
	tried.Guarded, err = guard(ctx, clusters, servers, &plan, id, tried.Legs)
	return tried, err
}

func serve(ctx context.Context, clusters []*cli.Cluster, all []*facts.Facts, plan *Plan, id string) []server {
	var servers []server
	for i, f := range all {
		for _, node := range Pick(f, min(plan.Nodes, MostNodes)) {
			servers = append(servers, server{Place: Place{f.Name, node}, cluster: i})
		}
	}
	var group sync.WaitGroup
	for i := range servers {
		s := &servers[i]
		group.Go(func() {
			if s.image, s.err = plan.image(all[s.cluster]); s.err == nil {
				s.addresses, s.err = s.start(ctx, clusters[s.cluster], id, plan.secret)
			}
		})
	}
	group.Wait()
	return servers
}

func (s *server) start(ctx context.Context, c *cli.Cluster, id string, secret reach.Secret) ([]string, error) {
	pod := OnNode(s.image, s.Node, reach.Request{Secret: secret, ServeFor: int(serveFor.Seconds())})
	pod.Labels[run] = id
	pod, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	s.pod = pod.Name
	if pod, err = Wait(ctx, c, pod, Running); err != nil {
		return nil, err
	}
	return Addresses(pod), nil
}

// Addresses are a pod's, one of each family at most. Those that no other host could have
// are left out: pods of other clusters are to ask there.
func Addresses(pod *corev1.Pod) []string {
	var all []string
	for _, ip := range pod.Status.PodIPs {
		address, err := netip.ParseAddr(ip.IP)
		if err == nil && endpoint.Check(address) == nil && !address.Is4In6() && !has(all, address.String()) {
			all = append(all, address.String())
		}
	}
	return all
}

// Taken are those addresses of a remote's pod that a cluster with these settings takes from
// it. A cluster without bounds for it takes all.
func Taken(addresses []string, settings facts.Settings, remote string) []string {
	bounds := settings.Prefixes(cluster.Name(remote), facts.PodSubnets)
	if len(bounds) == 0 {
		return addresses
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err != nil || !facts.Cover(bounds, []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())})
	})
}

// Meets tells whether two pods have addresses of one family.
func Meets(a, b *corev1.Pod) bool {
	return slices.ContainsFunc(Addresses(b), func(address string) bool { return has(Addresses(a), address) })
}

// asker is a pod that tries those of one remote.
type asker struct {
	from    *server
	remote  string
	request reach.Request
	legs    []Leg // the first ones in the order of the request
	result  *reach.Result
	err     error
}

// newAsker decides what a pod beside one that serves is to try: each pod of the remote at
// each address of a family that pods have on both nodes.
func newAsker(from *server, remote string, servers []server, plan *Plan, settings facts.Settings) *asker {
	a := &asker{from: from, remote: remote, request: reach.Request{Secret: plan.secret}}
	var without []Leg
	for i := range servers {
		to := &servers[i]
		if to.Cluster != remote {
			continue
		}
		leg := Leg{From: from.Place, To: to.Place}
		shared := false
		taken := Taken(to.addresses, settings, remote)
		for _, address := range taken {
			if has(from.addresses, address) {
				shared, leg.Address = true, address
				a.request.Try, a.legs = append(a.request.Try, address), append(a.legs, leg)
			}
		}
		if !shared {
			leg.Address, leg.Untried = "", "their pods have no address of one family"
			if len(taken) < len(to.addresses) {
				leg.Untried = fmt.Sprintf("its pod is at %s, outside of what %s takes from %s", strings.Join(to.addresses, " and "), from.Cluster, remote)
			}
			for _, s := range []*server{from, to} {
				if s.err != nil {
					leg.Untried = fmt.Sprintf("no pod runs on %s: %v", s.Place, s.err)
				}
			}
			without = append(without, leg)
		}
	}
	a.legs = append(a.legs, without...)
	a.request.Names = plan.Names[[2]string{from.Cluster, remote}]
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
		a.err = fmt.Errorf("no pod runs on %s: %w", a.from.Place, a.from.err)
	case len(a.request.Try)+len(a.request.Names) > 0:
		pod := OnNode(a.from.image, a.from.Node, a.request)
		result, err := askOne(ctx, c, pod)
		a.result, a.err = complete(pod, &a.request, result, err)
	}
}

// complete is a pod's result where it says all that was asked.
func complete(pod *corev1.Pod, request *reach.Request, result *reach.Result, err error) (*reach.Result, error) {
	if err == nil && (len(result.Tried) != len(request.Try) || len(result.Named) != len(request.Names)) {
		err = fmt.Errorf("the image %s is too old to try this; --image names another one", pod.Spec.Containers[0].Image)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// tell adds what the pod found out.
func (a *asker) tell(tried *Tried) {
	for i := range a.legs {
		leg := &a.legs[i]
		switch {
		case leg.Untried != "":
		case a.result != nil:
			leg.Try = a.result.Tried[i]
		default:
			leg.Untried = fmt.Sprintf("a pod on %s finds nothing out: %v", a.from.Place, a.err)
		}
	}
	tried.Legs = append(tried.Legs, a.legs...)
	for i, name := range a.request.Names {
		n := Name{From: a.from.Place, Remote: a.remote, Name: name}
		if a.result != nil {
			n.Found = a.result.Named[i]
		} else {
			n.Untried = a.err.Error()
		}
		tried.Names = append(tried.Names, n)
	}
	if a.request.Stream != "" && a.result != nil && a.result.Streamed != nil {
		tried.Streams = append(tried.Streams, Stream{a.from.Place, a.legs[0].To, *a.result.Streamed})
	}
}
