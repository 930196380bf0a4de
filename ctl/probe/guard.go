package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// Guard describes the network policy of Calico that guards a cluster's pods for a test: it
// admits only the pods of a network set.
type Guard struct {
	API    schema.GroupVersion // of Calico
	Domain string              // prefix of labels
	// Remotes are the clusters whose labelled pods are in sets of this one.
	Remotes []string
}

// Guarded is the result of testing guarded pods of a cluster from pods of another one.
type Guarded struct {
	From NodeRef
	To   string
	// Skipped is the reason for a missing result, or empty.
	Skipped string
	// Set is why the labelled pod's address was in no network set, Unlisted why the network
	// sets couldn't be read; both empty: it was in one.
	Set, Unlisted string
	Connections   []GuardedConnection
}

// GuardedConnection is the result for one guarded pod, which unlabelled pods have reached without
// the policy.
type GuardedConnection struct {
	To      NodeRef
	Address string
	// Unlabelled is the result of a pod without the label of the set, Labelled of one with it.
	Unlabelled, Labelled reach.Try
	// Unknown is the reason for a missing Labelled, or empty.
	Unknown string
}

const (
	// guardName is the name of the policy.
	guardName = "semaphorectl-verify"
	// run is a label of the guarded pods with the ID of the run. The policy selects it, so
	// that one of a killed run affects no other pods.
	run = "semaphore.uw.io/run"
	// enforcedWithin bounds the time until a new policy is enforced.
	enforcedWithin = 15 * time.Second
	// listedWithin bounds the time until a pod's address is in a network set.
	listedWithin = 15 * time.Second
	// answerWithin bounds a request to an API server.
	answerWithin = 5 * time.Second
	// deniedAfter is how many seconds a pod tries before the result is denied.
	deniedAfter = 5
	// stays is how many seconds a labelled pod waits before it tries, so that its address
	// gets into the set, admittedWithin how many seconds it then tries.
	stays, admittedWithin = 2, 30
)

func (g *Guard) policies(c *cli.Cluster) dynamic.ResourceInterface {
	return c.Dynamic.Resource(g.API.WithResource("networkpolicies")).Namespace(Namespace)
}

// name returns the name of the policy. In the custom resources that back Calico's API server
// names begin with the tier.
func (g *Guard) name() string {
	if g.native() {
		return guardName
	}
	return "default." + guardName
}

// native reports whether the API is that of Calico's API server.
func (g *Guard) native() bool { return g.API.Group == "projectcalico.org" }

// Rights returns the rights that the administrator needs for the test.
func (g *Guard) Rights() []authorizationv1.ResourceAttributes {
	wanted := []authorizationv1.ResourceAttributes{{Verb: "list", Group: g.API.Group, Resource: "globalnetworksets"}}
	for _, verb := range []string{"get", "create", "delete"} {
		wanted = append(wanted, authorizationv1.ResourceAttributes{Verb: verb, Group: g.API.Group, Resource: "networkpolicies", Namespace: Namespace})
	}
	return wanted
}

// set returns the labels of the network set for labelled pods of a cluster.
func (g *Guard) set(id, from string) labels.Set {
	return labels.Set{g.Domain + "/name": "semaphorectl-" + id, g.Domain + "/namespace": Namespace, g.Domain + "/cluster": from}
}

// policy returns the policy for the pods of a run, which admits the pods in the sets of the
// clusters from.
func (g *Guard) policy(id string, from []string) *unstructured.Unstructured {
	var rules []any
	for _, name := range from {
		set := g.set(id, name)
		selector := ""
		for _, key := range []string{"name", "namespace", "cluster"} {
			if selector != "" {
				selector += " && "
			}
			selector += fmt.Sprintf("%s/%s == '%s'", g.Domain, key, set[g.Domain+"/"+key])
		}
		rules = append(rules, map[string]any{
			"action": "Allow", "source": map[string]any{"selector": selector, "namespaceSelector": "global()"},
		})
	}
	spec := map[string]any{
		// Before other policies in this namespace, which may admit more.
		"order": int64(0), "selector": fmt.Sprintf("%s == '%s'", run, id), "types": []any{"Ingress"}, "ingress": rules,
	}
	if !g.native() {
		spec["tier"] = "default"
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": g.API.String(), "kind": "NetworkPolicy",
		"metadata": map[string]any{
			"name": g.name(), "namespace": Namespace,
			"labels": map[string]any{manifests.ManagedLabel: manifests.Manager, temporary: "true"},
		},
		"spec": spec,
	}}
}

// remove deletes the policy of this or an earlier run, also when ctx is done, unless it
// wasn't created by this tool.
func (g *Guard) remove(ctx context.Context, c *cli.Cluster) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	found, err := g.policies(c).Get(ctx, g.name(), metav1.GetOptions{})
	if err == nil && found.GetLabels()[temporary] != "true" {
		return fmt.Errorf("%s: NetworkPolicy %s/%s exists and wasn't created by an earlier run: delete it if it is unused", c.Name, Namespace, g.name())
	}
	if err == nil {
		err = g.policies(c).Delete(ctx, g.name(), metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete NetworkPolicy %s/%s: %w", c.Name, Namespace, g.name(), err)
	}
	return nil
}

// guard guards the pods of all clusters at the same time, and tests them again.
func guard(ctx context.Context, clusters []*cli.Cluster, servers []server, plan *Plan, id string, reached []Connection) ([]Guarded, error) {
	images, of := map[string]string{}, map[string][]server{}
	settings := map[string]inspect.Settings{}
	for i := range servers {
		settings[servers[i].Cluster] = servers[i].settings
		of[servers[i].Cluster] = append(of[servers[i].Cluster], servers[i])
		images[servers[i].Cluster] = servers[i].image
	}
	found, errs := make([][]Guarded, len(clusters)), make([]error, len(clusters))
	var group sync.WaitGroup
	for i, to := range clusters {
		g := guarding{Guard: plan.Guards[to.Name], id: id, to: to, servers: of[to.Name], images: images, settings: settings}
		if g.Guard == nil {
			continue
		}
		for _, c := range clusters {
			if c != to && slices.Contains(g.Remotes, c.Name) {
				g.from = append(g.from, c)
			}
		}
		group.Go(func() { found[i], errs[i] = g.try(ctx, reached) })
	}
	group.Wait()
	return slices.Concat(found...), errors.Join(errs...)
}

// guarding is the test of one cluster's guarded pods.
type guarding struct {
	*Guard
	id   string
	to   *cli.Cluster
	from []*cli.Cluster
	// servers are the guarded pods.
	servers []server
	// images are the images of pods, and settings those of our programs, by cluster.
	images   map[string]string
	settings map[string]inspect.Settings
}

// try guards the pods that were reached before, and tests them from labelled and unlabelled
// pods of the other clusters. The error is that of the cleanup.
func (g *guarding) try(ctx context.Context, reached []Connection) (all []Guarded, err error) {
	all = make([]Guarded, len(g.from))
	for i, c := range g.from {
		all[i] = guarded(c.Name, g.to.Name, reached)
	}
	if !slices.ContainsFunc(all, func(g Guarded) bool { return g.Skipped == "" }) {
		return all, nil
	}
	fail := func(what error) []Guarded {
		for i := range all {
			all[i].Skipped = what.Error()
		}
		return all
	}
	if err := g.remove(ctx, g.to); err != nil {
		return fail(err), nil
	}
	defer func() { err = errors.Join(err, g.remove(ctx, g.to)) }()
	var names []string
	for _, c := range g.from {
		names = append(names, c.Name)
	}
	if _, err := g.policies(g.to).Create(ctx, g.policy(g.id, names), metav1.CreateOptions{}); err != nil {
		return fail(fmt.Errorf("create NetworkPolicy %s/%s: %w", Namespace, g.name(), err)), nil
	}
	var group sync.WaitGroup
	for i, c := range g.from {
		if all[i].Skipped == "" {
			group.Go(func() { g.ask(ctx, c, &all[i]) })
		}
	}
	group.Wait()
	for i := range all {
		if why := g.ended(ctx, all[i].Connections); all[i].Skipped == "" && why != nil {
			all[i].Skipped = why.Error()
		}
	}
	return all, nil
}

// ended returns an error unless the tested pods still run: that a terminated pod doesn't
// answer proves nothing about policies.
func (g *guarding) ended(ctx context.Context, connections []GuardedConnection) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for i := range g.servers {
		s := &g.servers[i]
		if !slices.ContainsFunc(connections, func(l GuardedConnection) bool { return l.To == s.NodeRef }) {
			continue
		}
		pod, err := g.to.Client.CoreV1().Pods(Namespace).Get(ctx, s.pod, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("check whether the tested pod on %s still runs: %w", s.NodeRef, err)
		}
		if err != nil || pod.DeletionTimestamp != nil || !Running(pod) {
			return fmt.Errorf("the tested pod on %s has ended meanwhile", s.NodeRef)
		}
	}
	return nil
}

// guarded returns the connections to test: those of the node whose pod has reached the most pods
// without the policy.
func guarded(from, to string, reached []Connection) Guarded {
	g := Guarded{From: NodeRef{Cluster: from}, To: to, Skipped: "none of its pods got a response without a policy"}
	by := map[NodeRef][]GuardedConnection{}
	for _, l := range reached {
		if l.From.Cluster != from || l.To.Cluster != to || l.Skipped != "" || l.Error != "" {
			continue
		}
		by[l.From] = append(by[l.From], GuardedConnection{To: l.To, Address: l.Address})
		if len(by[l.From]) > len(g.Connections) {
			g.From, g.Connections, g.Skipped = l.From, by[l.From], ""
		}
	}
	return g
}

// ask tests the guarded pods from an unlabelled pod until the policy denies it, and then
// from a labelled one: before the policy is enforced, a response to it proves nothing.
func (g *guarding) ask(ctx context.Context, c *cli.Cluster, found *Guarded) {
	request := reach.Request{Map: g.settings[c.Name].SubnetMap(), Patience: deniedAfter}
	for _, l := range found.Connections {
		request.Try = append(request.Try, l.Address)
	}
	for made := time.Now(); ; {
		result, err := askOne(ctx, c, OnNode(g.images[c.Name], found.From.Node, request), &request)
		if err != nil {
			found.Skipped = "the pod without the label failed: " + err.Error()
			return
		}
		for i := range found.Connections {
			found.Connections[i].Unlabelled = result.Connections[i]
		}
		if !slices.ContainsFunc(result.Connections, func(t reach.Try) bool { return t.Error == "" }) || time.Since(made) > enforcedWithin {
			break
		}
	}
	request.ServeFor, request.Patience = stays, admittedWithin
	pod := OnNode(g.images[c.Name], found.From.Node, request)
	pod.Labels[g.Domain+"/name"] = g.set(g.id, c.Name)[g.Domain+"/name"]
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("not within "+limit.String()))
	defer cancel()
	pod, err := g.labelled(ctx, c, pod, &request, found)
	var result *reach.Result
	switch {
	case err != nil:
		found.Unlisted = err.Error()
	case found.Set == "":
		result, err = await(ctx, c, pod, &request)
	}
	for i := range found.Connections {
		switch {
		case found.Set != "":
			found.Connections[i].Unknown = "its address is in no network set"
		case err != nil:
			found.Connections[i].Unknown = "the pod with the label failed: " + err.Error()
		default:
			found.Connections[i].Labelled = result.Connections[i]
		}
	}
}

// labelled starts a pod with the label, and waits until its address is in a network set.
func (g *guarding) labelled(ctx context.Context, c *cli.Cluster, pod *corev1.Pod, request *reach.Request, found *Guarded) (*corev1.Pod, error) {
	pod, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	pod, err = Wait(ctx, c, pod, func(p *corev1.Pod) bool { return len(p.Status.PodIPs) > 0 })
	if err != nil {
		return nil, err
	}
	var wanted []string
	for _, address := range Virtual(Addresses(pod), g.settings[c.Name]) {
		if slices.ContainsFunc(request.Try, func(to string) bool { return has([]string{address}, to) }) {
			wanted = append(wanted, address)
		}
	}
	found.Set, err = g.listed(ctx, c.Name, wanted)
	return pod, err
}

// listed waits until addresses of a cluster's pod are in a network set, or returns why they
// aren't. The error is that of reading network sets.
func (g *guarding) listed(ctx context.Context, from string, wanted []string) (why string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listedWithin, errors.New("not within "+listedWithin.String()))
	defer cancel()
	sets := g.to.Dynamic.Resource(g.API.WithResource("globalnetworksets"))
	last := errors.New("no answer")
	for {
		once, done := context.WithTimeout(ctx, answerWithin)
		missing := wanted
		err := cli.ListUntyped(once, sets, metav1.ListOptions{LabelSelector: g.set(g.id, from).String()}, func(o *unstructured.Unstructured) error {
			missing = lacking(o, missing)
			return nil
		})
		done()
		if err == nil && len(missing) == 0 && len(wanted) > 0 {
			return "", nil
		}
		if err == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if last != nil {
				return "", fmt.Errorf("read network sets of %s: %w", g.to.Name, last)
			}
			return context.Cause(ctx).Error(), nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lacking returns the addresses that a set lacks.
func lacking(set *unstructured.Unstructured, wanted []string) []string {
	nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
	return slices.DeleteFunc(slices.Clone(wanted), func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && slices.Contains(nets, netip.PrefixFrom(ip, ip.BitLen()).String())
	})
}
