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

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// FieldManager is who owns our annotations in a Node's managedFields. It lets
// the API server remove what we published for a remote that is no longer
// configured and leave what others wrote.
const FieldManager = "semaphore-wireguard"

// Self is this node as the local API server has it, trimmed to what publishing
// needs.
type Self struct {
	Name        string
	UID         types.UID
	InternalIPs []netip.Addr
	ExternalIPs []netip.Addr
	Annotations map[string]string // ours and those that look like ours
	PodCIDRs    []netip.Prefix    // of its specification
	Noted       pods.Noted
}

// Published returns the prefixes that the node's annotation says, and whether it has
// one.
func (s Self) Published() ([]netip.Prefix, bool) {
	text, carried := s.Annotations[PodCIDRsAnnotation]
	return parsePrefixes(text), carried
}

// TrimSelf trims this node's object. Node heartbeats leave the result equal.
func TrimSelf(n *corev1.Node) Self {
	s := Self{Name: n.Name, UID: n.UID, Annotations: map[string]string{}, PodCIDRs: nodePodCIDRs(n), Noted: pods.Note(n)}
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

// Equal tells whether two states of this node are the same to us.
func (s Self) Equal(o Self) bool {
	return s.Name == o.Name && s.UID == o.UID && slices.Equal(s.InternalIPs, o.InternalIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && maps.Equal(s.Annotations, o.Annotations) && slices.Equal(s.PodCIDRs, o.PodCIDRs) && s.Noted.Equal(o.Noted)
}

// Publication is what this node tells one remote cluster. While the key is zero or
// the port 0, because the device isn't there yet, what the node carries for that
// remote stays as it is.
type Publication struct {
	Remote     string
	PublicKey  tunnel.Key
	ListenPort int // that the device listens on
	// Location is what the endpoint is made of, unless the node's annotations say
	// something else.
	Location endpoint.Source
}

func (p Publication) known() bool { return !p.PublicKey.IsZero() && p.ListenPort != 0 }

// Annotations returns the annotations that the node must carry. Of a remote for which
// this node has no endpoint that others could reach, which an error says, they stay as
// they are; so does what the node carries of pods while those are nil, because they aren't
// known. A remote for which the node carries nothing yet gets nothing before they are:
// without the annotation of pods, others would take those of the specification, which may
// be another node's. The endpoint of a node that can only be reached after it has spoken is
// empty: without the annotation agents of the original would not make it a peer.
func Annotations(self Self, publications []Publication, pods *pods.Known) (map[string]string, error) {
	want := make(map[string]string, 2*len(publications)+1)
	prefixes, settled := self.Annotations[PodCIDRsAnnotation]
	if settled && pods == nil {
		want[PodCIDRsAnnotation] = prefixes
	}
	settled = settled || pods != nil
	if pods != nil && pods.Publish {
		want[PodCIDRsAnnotation] = joinPrefixes(pods.Prefixes)
	}
	remotes := make(map[string]string, len(publications)) // by endpoint
	var errs []error
	for i := range publications {
		p := &publications[i]
		at := ""
		known := p.known()
		if known {
			var err error
			at, err = self.endpointFor(p)
			if other, taken := remotes[at]; err == nil && taken && at != "" {
				err = fmt.Errorf("endpoint %s is that for %s already: each remote's device has a port of its own, also outside; annotations whose names begin with the remote tell them apart", at, other)
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

// carries tells whether the node carries anything for a remote.
func (s Self) carries(remote string) bool {
	_, key := s.Annotations[PublicKeyAnnotation(remote)]
	_, endpoint := s.Annotations[EndpointAnnotation(remote)]
	return key || endpoint
}

// Nodes are those of a cluster, as kube.Client has them.
type Nodes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, of types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Publisher keeps our annotations on this node's object: it puts them back when
// somebody changes or removes them, when the node object is made anew and when
// its address changes.
type Publisher struct {
	nodes        Nodes
	self         func() (Self, bool)
	publications func() []Publication
	pods         func() *pods.Known
	log          *slog.Logger

	spacing   time.Duration
	applied   bool      // once since start, for what an earlier configuration left
	written   time.Time // last
	due       time.Time // when a change that was put off is written; zero: none was
	published atomic.Bool
}

// PublisherConfig is what a Publisher needs.
type PublisherConfig struct {
	Nodes        Nodes                // of the local cluster; needs the verbs get and patch
	Self         func() (Self, bool)  // this node, and whether it is known
	Publications func() []Publication // for each configured remote, as it is now
	Pods         func() *pods.Known   // those of this node; nil: not known
	// Spacing is how close two writes follow each other: what changes sooner is put off
	// until Due. A pass that writes nothing holds up none that does.
	Spacing time.Duration
	Logger  *slog.Logger
}

// NewPublisher returns a publisher that has done nothing yet.
func NewPublisher(cfg PublisherConfig) *Publisher {
	return &Publisher{nodes: cfg.Nodes, self: cfg.Self, publications: cfg.Publications, pods: cfg.Pods, spacing: cfg.Spacing, log: cfg.Logger}
}

// Published tells whether the node carried all our annotations after the last
// pass.
func (p *Publisher) Published() bool { return p.published.Load() }

// Due returns when Reconcile has something to write that it has put off; the zero time:
// it hasn't.
func (p *Publisher) Due() time.Time { return p.due }

// Reconcile brings the node's annotations to what they must be. It writes only
// when one differs, and once after start, so that the API server drops those of
// remotes that are no longer configured. While the node isn't known it does
// nothing. It must not be called twice at the same time.
func (p *Publisher) Reconcile(ctx context.Context) error {
	p.due = time.Time{}
	self, known := p.self()
	if !known {
		return nil
	}
	publications := p.publications()
	pods := p.pods()
	want, wrong := Annotations(self, publications, pods)
	var changed []string
	for k, v := range want {
		if carried, is := self.Annotations[k]; !is || carried != v {
			changed = append(changed, k)
		}
	}
	if _, carried := self.Annotations[PodCIDRsAnnotation]; carried && pods != nil && !pods.Publish {
		changed = append(changed, PodCIDRsAnnotation)
	}
	complete := wrong == nil && pods != nil && !slices.ContainsFunc(publications, func(p Publication) bool { return !p.known() })
	if len(changed) == 0 && p.applied {
		p.published.Store(complete)
		return wrong
	}
	// After an error nobody asks when something is due, and the next pass is later anyway.
	if next := p.written.Add(p.spacing); wrong == nil && time.Now().Before(next) {
		p.due = next
		return nil
	}
	p.written = time.Now()
	if err := p.apply(ctx, self.Name, self.UID, want); err != nil {
		p.published.Store(false)
		return errors.Join(wrong, fmt.Errorf("publish on node %q: %w", self.Name, err))
	}
	p.applied = true
	p.published.Store(complete)
	if len(changed) > 0 {
		slices.Sort(changed)
		p.log.Info("published", "node", self.Name, "annotations", changed)
	}
	return wrong
}

// apply has the node carry these annotations of ours and no others, as kubectl apply
// --server-side does. The UID makes sure that a node that was deleted meanwhile isn't
// created. Client-go's own types for this bring along the schema of all of Kubernetes.
func (p *Publisher) apply(ctx context.Context, node string, uid types.UID, annotations map[string]string) error {
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
		return err
	}
	force := true
	_, err = p.nodes.Patch(ctx, node, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: FieldManager, Force: &force})
	return err
}

// Withdraw removes from the node what this and earlier configurations
// published. That the node is gone is no error.
func (p *Publisher) Withdraw(ctx context.Context, node string) error {
	// Applying nothing gives up what we own, for remotes of earlier
	// configurations; the patch removes the configured ones whoever wrote them
	// last.
	self, err := p.nodes.Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	if err := p.apply(ctx, node, self.UID, nil); err != nil {
		return fmt.Errorf("withdraw from node %q: %w", node, err)
	}
	gone := map[string]any{PodCIDRsAnnotation: nil}
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
