package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// objects is a resource without Go types, for kube.ListWatch.
type objects = kube.Resource[*unstructured.UnstructuredList]

func watch[T any](s *Source, kind string, from cache.ListerWatcher, equal func(a, b T) bool, keep func(runtime.Object) (T, bool)) *kube.Watch[T] {
	return kube.NewWatch(kube.WatchConfig[T]{
		Cluster: s.cfg.Cluster, Server: s.cfg.Server, Kind: kind,
		ListWatch: from, Keep: keep, Equal: equal, Notify: s.cfg.Changed, Logger: s.cfg.Logger, Metrics: s.cfg.Metrics,
	})
}

func samePrefixes(a, b []netip.Prefix) bool { return slices.Equal(a, b) }

// podsOf lists and watches the pods of one node.
func podsOf(client kube.Client, node string) cache.ListerWatcher {
	return kube.ListWatch(func(context.Context) (kube.Resource[*corev1.PodList], error) {
		return client.Pods(metav1.NamespaceAll), nil
	}, func(options *metav1.ListOptions) { ofNode(options, node) })
}

func ofNode(options *metav1.ListOptions, node string) {
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
}

// ciliumNodeOf lists and watches the CiliumNode of one node.
func ciliumNodeOf(client dynamic.Interface, node string) cache.ListerWatcher {
	return kube.ListWatch(func(context.Context) (objects, error) {
		return client.Resource(ipam.CiliumNodes()), nil
	}, func(options *metav1.ListOptions) { named(options, node) })
}

func named(options *metav1.ListOptions, name string) {
	options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
}

// affinities lists and watches BlockAffinities, of one node only where Calico labels them.
// Unlabelled ones of an earlier Calico are then missed, which doesn't matter: a block has
// 64 addresses, and their pods are published as single addresses.
type affinities struct {
	client    dynamic.Interface
	discovery rest.Interface
	node      string

	mu       sync.Mutex
	resource schema.GroupVersionResource // zero: not known
	selector string
}

func (a *affinities) listWatch() cache.ListerWatcher {
	return kube.ListWatch(func(ctx context.Context) (objects, error) {
		resource, _, err := a.find(ctx)
		if err != nil {
			return nil, err
		}
		return a.client.Resource(resource), nil
	}, func(options *metav1.ListOptions) {
		a.mu.Lock()
		defer a.mu.Unlock()
		options.LabelSelector = a.selector
	})
}

// errNoCalico means that the API server has no BlockAffinities.
var errNoCalico = errors.New("no BlockAffinities are served: Calico isn't installed")

// errNoBlocks means that it can't be decided yet in which group Calico stores them.
var errNoBlocks = errors.New("no BlockAffinities exist yet in either of Calico's API groups")

// find returns the resource in use, and whether any object of it exists.
func (a *affinities) find(ctx context.Context) (resource schema.GroupVersionResource, found bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resource.Resource != "" {
		return a.resource, true, nil
	}
	var seen []candidate
	for _, r := range ipam.CalicoAffinities() {
		c := a.inspect(ctx, r)
		if seen = append(seen, c); c.own {
			break
		}
	}
	best, err := prefer(seen)
	if err == nil && best.any {
		a.resource, a.selector = best.resource, best.selector
	}
	return best.resource, best.any, err
}

// candidate is the state of one of Calico's BlockAffinity resources.
type candidate struct {
	resource schema.GroupVersionResource
	served   bool
	any, own bool   // objects exist, of any node or of this one
	selector string // for those of this node
	err      error  // of reading it
}

// prefer decides which resource is in use; the preferred one is first:
//
//	blocks of this node in one     that one: the other's are left over from a migration
//	blocks of other nodes in one   that one: this node is new
//	no blocks, one is served       that one
//	no blocks, several are served  not decided yet: an error
//
// The preferred one may be served by Calico's own API server from the other, and be
// unavailable alone: then the other one is used.
func prefer(seen []candidate) (candidate, error) {
	var best candidate
	var unavailable error
	served := 0
	for _, c := range seen {
		switch {
		case c.own:
			return c, nil
		case apierrors.IsServiceUnavailable(c.err):
			unavailable = c.err
		case c.err != nil:
			return c, c.err
		case c.served:
			if served++; served == 1 || c.any && !best.any {
				best = c
			}
		}
	}
	switch {
	case best.any, served == 1:
		return best, nil
	case served > 1:
		return candidate{}, errNoBlocks
	case unavailable != nil:
		return candidate{}, unavailable
	}
	return candidate{}, errNoCalico
}

// inspect reads the state of one resource.
func (a *affinities) inspect(ctx context.Context, r schema.GroupVersionResource) candidate {
	c := candidate{resource: r}
	if c.served, c.err = serves(ctx, a.discovery, r); !c.served || c.err != nil {
		return c
	}
	list, err := a.client.Resource(r).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil && len(list.Items) > 0 {
		c.any = true
		if _, labelled := list.Items[0].GetLabels()[ipam.HostnameHash]; labelled {
			c.selector = ipam.HostnameHash + "=" + ipam.HashOf(a.node)
		}
		list, err = a.client.Resource(r).List(ctx, metav1.ListOptions{LabelSelector: c.selector, ResourceVersion: "0"})
	}
	if err != nil {
		c.err = fmt.Errorf("read %s: %w", r.GroupResource(), err)
		return c
	}
	c.own = slices.ContainsFunc(list.Items, func(u unstructured.Unstructured) bool {
		_, own := ipam.Block(&u, a.node)
		return own
	})
	return c
}

// serves reports whether the API server has a resource. Discovery is allowed to every
// account, while a list of a missing resource is forbidden unless a role names it.
func serves(ctx context.Context, client rest.Interface, r schema.GroupVersionResource) (bool, error) {
	answer, err := client.Get().AbsPath("/apis", r.Group, r.Version).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	var list metav1.APIResourceList
	if err == nil {
		err = json.Unmarshal(answer, &list)
	}
	if err != nil {
		return false, fmt.Errorf("discover %s: %w", r.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(have metav1.APIResource) bool { return have.Name == r.Resource }), nil
}

// inspect collects the input of Choose.
func (s *Source) inspect(ctx context.Context) (ipam.Seen, error) {
	self, known := s.cfg.Self()
	if !known {
		return ipam.Seen{}, errUnread
	}
	seen := ipam.Seen{PodCIDRs: self.PodCIDRs, OVN: self.OVN != ""}
	if seen.OVN {
		return seen, nil
	}
	if err := s.inspectCilium(ctx, &seen); err != nil {
		return ipam.Seen{}, err
	}
	_, found, err := s.calico.find(ctx)
	switch {
	case errors.Is(err, errNoCalico), errors.Is(err, errNoBlocks):
	case apierrors.IsForbidden(err):
		seen.Forbidden = append(seen.Forbidden, "Calico's BlockAffinities")
	case err != nil:
		return ipam.Seen{}, err
	default:
		seen.Calico = found
	}
	if len(seen.PodCIDRs) > 0 && (!seen.CiliumIPAM || len(seen.Cilium) > 0) {
		return allowed(seen, self.Carries) // Choose ignores seen.Pods.
	}
	options := metav1.ListOptions{Limit: 1}
	ofNode(&options, s.cfg.Node)
	switch _, err := s.cfg.Client.Pods(metav1.NamespaceAll).List(ctx, options); {
	case apierrors.IsForbidden(err):
	case err != nil:
		return ipam.Seen{}, fmt.Errorf("read pods: %w", err)
	default:
		seen.Pods = true
	}
	return allowed(seen, self.Carries)
}

// allowed returns seen, or an error if the node publishes prefixes already and the agent
// may not read their possible source: an API server that has just started may not have
// loaded its roles yet.
func allowed(seen ipam.Seen, carries bool) (ipam.Seen, error) {
	if carries && len(seen.Forbidden) > 0 {
		return ipam.Seen{}, fmt.Errorf("the node publishes prefixes, and the agent may not read %s: %s, or set SEMAPHORE_WG_POD_CIDRS", seen.Forbidden[0], ipam.Grant)
	}
	return seen, nil
}

func (s *Source) inspectCilium(ctx context.Context, seen *ipam.Seen) error {
	served, err := serves(ctx, s.calico.discovery, ipam.CiliumNodes())
	if err != nil || !served {
		return err
	}
	var options metav1.ListOptions
	named(&options, s.cfg.Node)
	list, err := s.cfg.Dynamic.Resource(ipam.CiliumNodes()).List(ctx, options)
	switch {
	case apierrors.IsForbidden(err):
		seen.Forbidden = append(seen.Forbidden, "CiliumNodes")
		return nil
	case err != nil:
		return fmt.Errorf("read ciliumnodes: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].GetName() == s.cfg.Node {
			seen.CiliumIPAM, seen.Cilium = true, ipam.CiliumPrefixes(&list.Items[i])
		}
	}
	return nil
}
