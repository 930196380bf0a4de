package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// FieldManager owns our annotations in a Node's managedFields, so that the API server
// removes those of remotes that are no longer configured and keeps foreign ones.
const FieldManager = "semaphore-wireguard"

// Self is this node's object, trimmed to the parts that publishing needs.
type Self struct {
	Name        string
	UID         types.UID
	InternalIPs []netip.Addr
	ExternalIPs []netip.Addr
	Annotations map[string]string // of annotationGroup
	PodCIDRs    []netip.Prefix    // of its spec
	Plain       bool              // PodCIDRs can be published, see plain
	Noted       ipam.Noted
	Version     string // resource version; not compared
}

// Published returns the prefixes of the node's annotation as this cluster knows them, by the
// map that they were published with, and whether it has the annotation.
func (s Self) Published() ([]netip.Prefix, bool) {
	text, carried := s.Annotations[PodCIDRsAnnotation]
	prefixes := parsePrefixes(text)
	var by config.SubnetMap
	if err := by.Decode(s.Annotations[config.SubnetMapAnnotation]); err == nil {
		for i, p := range prefixes {
			prefixes[i] = by.RealPrefix(p)
		}
	}
	return prefixes, carried
}

// plain reports whether the admission policy accepts a node's podCIDRs as its annotation: it
// compares texts, and no prefix is too wide.
func plain(texts []string) bool {
	return len(texts) > 0 && !slices.ContainsFunc(texts, func(text string) bool {
		p, err := parsePrefix(text)
		return err != nil || p.String() != text || tooWide(p)
	})
}

// TrimSelf trims this node's object. Heartbeats leave the result equal.
func TrimSelf(n *corev1.Node) Self {
	s := Self{Name: n.Name, UID: n.UID, Annotations: map[string]string{}, PodCIDRs: nodePodCIDRs(n), Plain: plain(specPodCIDRs(n)), Noted: ipam.Note(n), Version: n.ResourceVersion}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		switch {
		case err != nil:
		case a.Type == corev1.NodeInternalIP:
			s.InternalIPs = append(s.InternalIPs, ip.Unmap())
		case a.Type == corev1.NodeExternalIP:
			s.ExternalIPs = append(s.ExternalIPs, ip.Unmap())
		}
	}
	for k, v := range n.Annotations {
		if group, _, ok := strings.Cut(k, "/"); ok && (group == annotationGroup || strings.HasSuffix(group, "."+annotationGroup)) {
			s.Annotations[k] = v
		}
	}
	return s
}

// Equal reports whether two states of this node are equal in the trimmed parts.
func (s Self) Equal(o Self) bool {
	return s.Name == o.Name && s.UID == o.UID && slices.Equal(s.InternalIPs, o.InternalIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && maps.Equal(s.Annotations, o.Annotations) && slices.Equal(s.PodCIDRs, o.PodCIDRs) && s.Plain == o.Plain && s.Noted.Equal(o.Noted)
}

// Publication is what this node publishes for one remote cluster. While the key is zero
// or the port 0, because the device doesn't exist yet, the published annotations are
// retained.
type Publication struct {
	Remote     string
	PublicKey  tunnel.Key
	ListenPort int // of the device
	// Location is the source of the endpoint, unless the node's annotations override it.
	Location endpoint.Source
}

func (p Publication) known() bool { return !p.PublicKey.IsZero() && p.ListenPort != 0 }

// Annotations returns the desired annotations of the node.
//
// Prefixes of pods are published as other clusters know them, together with the map. One that
// has no virtual prefix is left out, which is an error.
//
// The annotations for a remote are retained while this node has no endpoint for it, which
// is an error; that of pods is retained while pods is nil, that is, not known. Until pods
// is known nothing is published for a new remote: without the annotation of pods, its
// nodes would use spec.podCIDRs, which may be another node's.
//
// A node that has to send first publishes an empty endpoint: without the annotation,
// agents of the original would not make it a peer.
func Annotations(self Self, publications []Publication, pods *pods.Known, virtual config.SubnetMap) (map[string]string, error) {
	want := make(map[string]string, 2*len(publications)+2)
	carried, settled := self.Annotations[PodCIDRsAnnotation]
	var errs []error
	publish := func(prefixes []netip.Prefix) {
		text, err := published(prefixes, virtual)
		want[PodCIDRsAnnotation], errs = text, append(errs, err)
	}
	switch {
	case pods != nil && pods.Publish:
		publish(pods.Prefixes)
	case pods != nil && len(virtual) > 0:
		publish(self.PodCIDRs)
	case pods == nil && settled && self.Annotations[config.SubnetMapAnnotation] == virtual.String():
		want[PodCIDRsAnnotation] = carried
	case pods == nil && settled:
		prefixes, _ := self.Published()
		publish(prefixes)
	}
	settled = settled || pods != nil
	if settled && len(virtual) > 0 {
		want[config.SubnetMapAnnotation] = virtual.String()
	}
	remotes := make(map[string]string, len(publications)) // by endpoint
	for i := range publications {
		p := &publications[i]
		at := ""
		known := p.known()
		if known {
			var err error
			at, err = self.endpointFor(p)
			if other, taken := remotes[at]; err == nil && taken && at != "" {
				err = fmt.Errorf("endpoint %s is already that for %s: each remote's device needs its own port, also outside; use annotations prefixed with the remote's name", at, other)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("publish for %s: %w", p.Remote, err))
				known = false
			}
		}
		if !known || !settled && !self.carries(p.Remote) {
			for _, name := range []string{PublicKeyAnnotation(p.Remote), EndpointAnnotation(p.Remote)} {
				if value, carried := self.Annotations[name]; carried {
					want[name] = value
				}
			}
			continue
		}
		remotes[at] = p.Remote
		want[PublicKeyAnnotation(p.Remote)] = p.PublicKey.String()
		want[EndpointAnnotation(p.Remote)] = at
	}
	return want, errors.Join(errs...)
}

// published returns the annotation for prefixes of pods, and an error for those that have no
// virtual prefix.
func published(prefixes []netip.Prefix, virtual config.SubnetMap) (string, error) {
	if len(virtual) == 0 {
		return joinPrefixes(prefixes), nil
	}
	var (
		known []netip.Prefix
		errs  []error
	)
	for _, p := range prefixes {
		p, err := virtual.VirtualPrefix(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("publish prefixes of pods: %w", err))
			continue
		}
		known = append(known, p)
	}
	slices.SortFunc(known, netip.Prefix.Compare)
	return joinPrefixes(known), errors.Join(errs...)
}

// carries reports whether the node has an annotation for a remote.
func (s Self) carries(remote string) bool {
	_, key := s.Annotations[PublicKeyAnnotation(remote)]
	_, endpoint := s.Annotations[EndpointAnnotation(remote)]
	return key || endpoint
}

// Nodes is the subset of kube.Client's Nodes that a Publisher needs.
type Nodes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, of types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Publisher keeps our annotations on this node's object: it restores them when they are
// changed or removed, or the object is recreated, and updates them when the node's address
// changes.
type Publisher struct {
	nodes        Nodes
	self         func() (Self, bool)
	publications func() []Publication
	pods         func() *pods.Known
	virtual      config.SubnetMap
	log          *slog.Logger

	polled    func() time.Duration
	spacing   time.Duration
	applied   bool      // once since start, to remove annotations of an earlier configuration
	written   time.Time // last
	before    string    // version of the node as it was observed then
	wrote     uint64    // fingerprint of what was written then
	past      *keep.Overrides[string]
	due       time.Time // of a delayed write; zero: none
	published atomic.Bool
}

// seenWithin is the time in which a watch shows a write, or a poll after its period.
const seenWithin = 10 * time.Second

// PublisherConfig describes a Publisher.
type PublisherConfig struct {
	Nodes        Nodes                // of the local cluster; needs the verbs get and patch
	Self         func() (Self, bool)  // this node, and whether it is known
	Publications func() []Publication // current, for each admitted remote
	Pods         func() *pods.Known   // of this node; nil: not known
	PodSubnets   config.SubnetMap     // of this cluster
	// Polled returns the period in which Self is read; nil: it is watched.
	Polled func() time.Duration
	// Spacing is the minimum interval between writes; a change that comes sooner is delayed
	// until Due.
	Spacing time.Duration
	Logger  *slog.Logger
}

// NewPublisher returns a publisher.
func NewPublisher(cfg PublisherConfig) *Publisher {
	if cfg.Polled == nil {
		cfg.Polled = func() time.Duration { return 0 }
	}
	return &Publisher{polled: cfg.Polled, nodes: cfg.Nodes, self: cfg.Self, publications: cfg.Publications, pods: cfg.Pods, virtual: cfg.PodSubnets, spacing: cfg.Spacing, log: cfg.Logger, past: keep.NewOverrides[string](cfg.Logger)}
}

// Published reports whether the node had all our annotations after the last pass.
func (p *Publisher) Published() bool { return p.published.Load() }

// Due returns when Reconcile has a delayed write; zero: none.
func (p *Publisher) Due() time.Time { return p.due }

// Reconcile applies the desired annotations. It writes when one differs, and once after
// start, so that the API server removes those of remotes that are no longer configured.
// If another client, or an admission policy, changes them again after writes, the next one
// waits longer each time, and Reconcile returns an error. Until the node is known it does
// nothing. It must not be called concurrently.
func (p *Publisher) Reconcile(ctx context.Context) error {
	p.due = time.Time{}
	self, known := p.self()
	if !known {
		return nil
	}
	publications := p.publications()
	pods := p.pods()
	want, wrong := Annotations(self, publications, pods, p.virtual)
	var changed []string
	for k, v := range want {
		if carried, is := self.Annotations[k]; !is || carried != v {
			changed = append(changed, k)
		}
	}
	for _, name := range ofPods() {
		_, carried := self.Annotations[name]
		if _, wanted := want[name]; carried && !wanted {
			changed = append(changed, name)
		}
	}
	complete := wrong == nil && pods != nil && !slices.ContainsFunc(publications, func(p Publication) bool { return !p.known() })
	if len(changed) == 0 && p.applied {
		p.published.Store(complete)
		return wrong
	}
	now, sum := time.Now(), keep.Fingerprint(want)
	if expiry := p.written.Add(p.polled() + seenWithin); self.Version != "" && self.Version == p.before && sum == p.wrote && now.Before(expiry) {
		p.due = expiry // The watch doesn't show the write yet.
		return wrong
	}
	override := statuspage.Override{Object: "annotations of node " + self.Name}
	if wait := p.past.Wait(now, self.Name, override.Object, sum); wait > 0 {
		p.published.Store(false)
		p.due = now.Add(wait)
		return errors.Join(wrong, errors.New(override.String()))
	}
	// Due is ignored after an error, whose back-off is longer anyway.
	if next := p.written.Add(p.spacing); wrong == nil && now.Before(next) {
		p.due = next
		return nil
	}
	p.written, p.before, p.wrote = now, self.Version, sum
	node, err := p.apply(ctx, self.Name, self.UID, want)
	if err != nil {
		p.published.Store(false)
		p.before, p.wrote = "", 0
		return errors.Join(wrong, fmt.Errorf("publish on node %q: %w", self.Name, err))
	}
	altered := slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(name string) bool { return node.Annotations[name] != want[name] })
	p.past.Wrote(ctx, now, self.Name, override.Object, sum, !altered)
	p.applied = true
	p.published.Store(complete && !altered)
	if altered {
		return errors.Join(wrong, errors.New(override.String()))
	}
	if len(changed) > 0 {
		slices.Sort(changed)
		p.log.Info("published", "node", self.Name, "annotations", changed)
	}
	return wrong
}

// apply sets our annotations to exactly these by server-side apply. The UID keeps a node
// that was deleted meanwhile from being created. Client-go's apply configurations would
// link the schema of all of Kubernetes.
func (p *Publisher) apply(ctx context.Context, node string, uid types.UID, annotations map[string]string) (*corev1.Node, error) {
	type metadata struct {
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	body, err := json.Marshal(struct {
		metav1.TypeMeta
		Metadata metadata `json:"metadata"`
	}{metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, metadata{node, uid, annotations}})
	if err != nil {
		return nil, err
	}
	force := true
	return p.nodes.Patch(ctx, node, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: FieldManager, Force: &force})
}

// ofPods returns the names of the annotations that are the same for all remotes.
func ofPods() []string { return []string{PodCIDRsAnnotation, config.SubnetMapAnnotation} }

// Withdraw removes from the node what this and earlier configurations published. A
// missing node is no error.
func (p *Publisher) Withdraw(ctx context.Context, node string) error {
	// An empty apply removes what we own, also for remotes of earlier configurations; the
	// patch removes those of configured remotes even when another manager owns them.
	self, err := p.nodes.Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	if _, err := p.apply(ctx, node, self.UID, nil); err != nil {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	gone := map[string]any{}
	for _, name := range ofPods() {
		gone[name] = nil
	}
	for _, pub := range p.publications() {
		gone[PublicKeyAnnotation(pub.Remote)] = nil
		gone[EndpointAnnotation(pub.Remote)] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": gone}})
	if err != nil {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	_, err = p.nodes.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	return nil
}
