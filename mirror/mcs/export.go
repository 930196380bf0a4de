package mcs

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Export is a trimmed ServiceExport. It is immutable.
type Export struct {
	Created time.Time
	// Labels and Annotations are exported ones, without those in NotCopied.
	Labels, Annotations map[string]string
	NotCopied           []string
	// Cluster is the name of the cluster as its own mirror states it; empty: not stated.
	Cluster string
	// Status is the state of an export of the local cluster; nil: of another one.
	Status *ExportStatus
}

// ExportStatus has what is needed to write the status of an export.
type ExportStatus struct {
	UID, ResourceVersion string
	Generation           int64
	Conditions           []metav1.Condition
}

// Bounds of the exported labels and annotations of one export.
const (
	maxExportedKeys  = 64
	maxExportedBytes = 16 << 10
)

// notCopied are domains, each with all below it, of labels and annotations by which tools find the
// objects that are theirs, and delete those that they don't know: those of Kubernetes, with
// app.kubernetes.io/instance and managed-by, applysets and owning-inventory, of this API, of this
// program, and of Argo CD, Flux, Helm, kapp, Rancher (objectset) and Config Sync.
//
//nolint:gochecknoglobals // Go has no constants of this type.
var notCopied = []string{
	"kubernetes.io", "k8s.io", "x-k8s.io", "semaphore.uw.io",
	"argoproj.io", "fluxcd.io", "helm.sh", "k14s.io", "cattle.io", "configmanagement.gke.io", "configsync.gke.io",
}

// copied reports whether a label or annotation of an export is one of its imports.
func copied(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return !slices.ContainsFunc(notCopied, func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) })
}

// TrimExport trims a ServiceExport. Own is whether it is one of the local cluster. It returns false
// for an export that was deleted, whichever finalizers hold it.
func TrimExport(e *v1beta1.ServiceExport, own bool) (*Export, bool) {
	if e.DeletionTimestamp != nil {
		return nil, false
	}
	x := &Export{Created: e.CreationTimestamp.UTC()}
	left := maxExportedBytes
	x.Labels = x.exported(e.Spec.ExportedLabels, &left, func(value string) bool { return len(validation.IsValidLabelValue(value)) == 0 })
	x.Annotations = x.exported(e.Spec.ExportedAnnotations, &left, func(string) bool { return true })
	for i := range e.Status.Conditions {
		if c := &e.Status.Conditions[i]; c.Type == ConditionCluster && len(validation.IsDNS1123Label(c.Message)) == 0 {
			x.Cluster = c.Message
		}
	}
	if own {
		x.Status = &ExportStatus{UID: string(e.UID), ResourceVersion: e.ResourceVersion, Generation: e.Generation, Conditions: e.Status.Conditions}
	}
	return x, true
}

// exported returns the entries that are valid and within the bounds; nil: none.
func (x *Export) exported(all map[string]string, left *int, valid func(value string) bool) map[string]string {
	var some map[string]string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		size := len(key) + len(value)
		if len(validation.IsQualifiedName(key)) > 0 || !valid(value) || !copied(key) || size > *left || len(some) == maxExportedKeys {
			if len(x.NotCopied) < maxNamed {
				x.NotCopied = append(x.NotCopied, printable.Text(key, maxShown))
			}
			continue
		}
		if some == nil {
			some = map[string]string{}
		}
		*left -= size
		some[key] = value
	}
	return some
}

// maxNamed is the maximum number of examples in a message, maxShown that of the characters of
// a value in it.
const (
	maxNamed = 5
	maxShown = 80
)

// Equal reports whether two exports are equal.
func (x *Export) Equal(o *Export) bool {
	return x.Created.Equal(o.Created) && x.Cluster == o.Cluster &&
		maps.Equal(x.Labels, o.Labels) && maps.Equal(x.Annotations, o.Annotations) && slices.Equal(x.NotCopied, o.NotCopied) &&
		(x.Status == nil) == (o.Status == nil) && (x.Status == nil || x.Status.equal(o.Status))
}

func (s *ExportStatus) equal(o *ExportStatus) bool {
	return s.UID == o.UID && s.ResourceVersion == o.ResourceVersion
}

// Offer is what one cluster exports under a namespace and name: its export, and the parts of
// its Service that an import has.
type Offer struct {
	Cluster string
	*Export
	Spec
	LocalFirst bool // local endpoints are preferred
	// InternalTrafficPolicy and TrafficDistribution are empty if unset.
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	// remembered: the cluster is unknown, and this is what its part of the running import was.
	remembered bool
}
