package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// metadataAnnotation has an object's metadata in Calico's custom resources. Objects of older
// releases have their labels only there.
const metadataAnnotation = "projectcalico.org/metadata"

// managedByLabel marks network sets as those of a program.
const managedByLabel = "managed-by"

// Labels are the label keys and values of pods and sets.
type Labels struct {
	// Domain is the domain of keys, before the slash: policy.semaphore.uw.io.
	Domain string
	// ManagedBy is the value of managedByLabel for our sets.
	ManagedBy string
}

// Pod returns the label key of pods.
func (l Labels) Pod() string { return l.Domain + "/name" }

// of returns the labels of a set.
func (l Labels) of(id Identity) map[string]string {
	return map[string]string{
		managedByLabel:          l.ManagedBy,
		l.Domain + "/name":      id.Name,
		l.Domain + "/namespace": id.Namespace,
		l.Domain + "/cluster":   id.Cluster,
	}
}

// observe trims a network set.
func (l Labels) observe(set *calico.GlobalNetworkSet) Observed {
	o := Observed{
		Object: Object{Name: set.Name}, UID: string(set.UID), ResourceVersion: set.ResourceVersion,
		Deleting: set.DeletionTimestamp != nil,
	}
	inside := annotatedLabels(set.Annotations[metadataAnnotation])
	effective := maps.Clone(inside)
	if effective == nil {
		effective = map[string]string{}
	}
	maps.Copy(effective, set.Labels)
	if effective[managedByLabel] != l.ManagedBy {
		return o
	}
	o.Owned = true
	o.Identity = Identity{
		Cluster:   effective[l.Domain+"/cluster"],
		Namespace: effective[l.Domain+"/namespace"],
		Name:      effective[l.Domain+"/name"],
	}
	o.Tracked, o.Untracked = kube.Tracked(set, fieldManager), len(set.ManagedFields) == 0
	o.Exact = true
	if inside != nil {
		o.Metadata = set.Annotations[metadataAnnotation]
	}
	for key, value := range l.of(o.Identity) {
		if set.Labels[key] != value || inside != nil && inside[key] != value {
			o.Exact = false
		}
	}
	var exact bool
	o.Addrs, o.Ranges, exact = parseNets(set.Spec.Nets)
	o.Exact = o.Exact && exact
	return o
}

// annotatedLabels returns the labels in Calico's metadata annotation, or nil.
func annotatedLabels(annotation string) map[string]string {
	if annotation == "" {
		return nil
	}
	var metadata struct {
		Labels map[string]string `json:"labels"`
	}
	// An invalid annotation has no labels.
	if err := json.Unmarshal([]byte(annotation), &metadata); err != nil {
		return nil
	}
	return metadata.Labels
}

// parseNets returns the single addresses among the nets, sorted, whether there are others, and
// whether nets is exactly what we would write for the addresses.
func parseNets(nets []string) (addrs []netip.Addr, others, exact bool) {
	addrs = make([]netip.Addr, 0, len(nets))
	for _, net := range nets {
		prefix, err := netip.ParsePrefix(net)
		if err != nil || !prefix.IsSingleIP() || prefix.String() != net {
			others = true
			continue
		}
		addrs = append(addrs, prefix.Addr())
	}
	exact = slices.IsSortedFunc(addrs, netip.Addr.Compare)
	if !exact {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	unique := slices.Compact(addrs)
	return unique, others, exact && len(unique) == len(nets)
}

// nets returns addresses with prefix lengths.
func nets(addrs []netip.Addr) []string {
	text := make([]string, len(addrs))
	for i, addr := range addrs {
		text[i] = netip.PrefixFrom(addr, addr.BitLen()).String()
	}
	return text
}

// manifest returns a network set to create.
func (l Labels) manifest(o *Object) *calico.GlobalNetworkSet {
	return &calico.GlobalNetworkSet{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: l.of(o.Identity)},
		Spec:       calico.GlobalNetworkSetSpec{Nets: nets(o.Addrs)},
	}
}

// patch returns a JSON merge patch (RFC 7386) from have, with its resourceVersion as a
// precondition, to want. Labels and annotations of others stay. A tracked patch leaves
// managed fields, or begins them, so that admission policies can distinguish what we change
// from what others add to it.
func (l Labels) patch(have *Observed, want *Object, tracked bool, apiVersion string) ([]byte, error) {
	labels := l.of(want.Identity)
	metadata := map[string]any{"resourceVersion": have.ResourceVersion, "labels": labels}
	switch {
	case tracked && have.Untracked:
		metadata["managedFields"] = kube.Tracking(fieldManager, apiVersion)
	case !tracked && have.Tracked:
		metadata["managedFields"] = kube.Untracked()
	}
	if have.Metadata != "" {
		annotation, err := relabel(have.Metadata, labels)
		if err != nil {
			return nil, err
		}
		metadata["annotations"] = map[string]string{metadataAnnotation: annotation}
	}
	return json.Marshal(map[string]any{
		"metadata": metadata,
		"spec":     map[string]any{"nets": nets(want.Addrs)},
	})
}

// relabel sets labels in Calico's metadata annotation and retains the rest.
func relabel(annotation string, labels map[string]string) (string, error) {
	var metadata map[string]json.RawMessage
	if err := json.Unmarshal([]byte(annotation), &metadata); err != nil {
		return "", fmt.Errorf("read annotation %s: %w", metadataAnnotation, err)
	}
	all := annotatedLabels(annotation)
	maps.Copy(all, labels)
	encoded, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("write annotation %s: %w", metadataAnnotation, err)
	}
	metadata["labels"] = encoded
	text, err := json.Marshal(metadata)
	if err != nil {
		return "", fmt.Errorf("write annotation %s: %w", metadataAnnotation, err)
	}
	return string(text), nil
}

// equal reports whether two states of an object are equal. It ignores the versions of foreign
// objects, which may change often.
func (o *Observed) equal(p *Observed) bool {
	if !o.Owned || !p.Owned {
		return o.Owned == p.Owned
	}
	return o.UID == p.UID && o.ResourceVersion == p.ResourceVersion
}

// metaOf returns the keep.Meta of an object.
func metaOf(o *Observed) keep.Meta {
	return keep.Meta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
}
