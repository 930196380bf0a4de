package mirror

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Labels and annotations of the objects of imports that we set and remove.
//
//nolint:gochecknoglobals // Go has no constants of this type.
var (
	derivedLabels      = []string{mcs.LabelImported}
	derivedAnnotations = []string{mcs.AnnotImport}
	importSliceLabels  = []string{discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, mcs.LabelServiceName, mcs.LabelSourceCluster}
)

// Imported is the desired state of an import, beyond that of its endpoints.
type Imported struct {
	mcs.Import
	// IPs and Families are those of the derived Service, none yet if there is none. A headless
	// import has no IPs, and the families of mcs.Import.Families.
	IPs      []string
	Families []corev1.IPFamily
	// Unsupported: the local cluster has none of its IP families.
	Unsupported bool
	// Refused are objects that the API server refuses, and Instead what others have instead of
	// some fields.
	Refused, Instead []string
	// Status is nil if the state of a cluster is unknown that the running one is made of.
	Status *v1beta1.ServiceImportStatus
	sum    sum
	// derivedSum is that of the derived Service.
	derivedSum sum
}

// object returns the desired ServiceImport.
func (i *Imported) object(k origin.Key) *v1beta1.ServiceImport {
	return i.Object(k.Namespace, k.Name, i.IPs, i.Families)
}

// derived returns the desired derived Service: without a selector, so that its endpoints are
// our slices.
func (t *Service) derived(k origin.Key, owner types.UID) *corev1.Service {
	s := t.service(k.Namespace)
	s.Name = mcs.DerivedName(k.Namespace, k.Name)
	s.Labels, s.Annotations = map[string]string{mcs.LabelImported: labelValue}, map[string]string{mcs.AnnotImport: k.Name}
	if owner != "" { // it is made before the import, which gets its addresses
		s.OwnerReferences = []metav1.OwnerReference{mcs.Owner(k.Name, owner)}
	}
	t.Imported.Traffic(&s.Spec)
	return s
}

// importObject returns the desired EndpointSlice of an import.
func (w *Slice) importObject(k origin.Key, owner types.UID) *discoveryv1.EndpointSlice {
	s := w.object(k.Namespace, mcs.DerivedName(k.Namespace, k.Name))
	slice, _ := importKey(w.Name)
	s.Name = slice.Name
	s.Annotations = nil
	s.Labels[mcs.LabelServiceName], s.Labels[mcs.LabelSourceCluster] = k.Name, w.Cluster
	if w.headless {
		// CoreDNS finds it by the labels of the API. A headless import has no Service.
		delete(s.Labels, corev1.IsHeadlessService)
		delete(s.Labels, discoveryv1.LabelServiceName)
	}
	s.OwnerReferences = []metav1.OwnerReference{mcs.Owner(k.Name, owner)}
	return s
}

// serviceImport hashes a ServiceImport: all but its status.
func (h summer) serviceImport(i *v1beta1.ServiceImport) sum { return h.of(ownImport(i)) }

func ownImport(i *v1beta1.ServiceImport) ownFields {
	spec := i.Spec
	if len(spec.Ports) == 0 {
		spec.Ports = []v1beta1.ServicePort{}
	}
	return ownFields{spec, i.Labels, i.Annotations}
}

// derived hashes a derived Service.
func (h summer) derived(s *corev1.Service) sum { return h.of(ownDerived(s)) }

func ownDerived(s *corev1.Service) ownFields {
	own := ownService(s)
	own.Labels, own.Annotations = only(s.Labels, derivedLabels...), only(s.Annotations, derivedAnnotations...)
	return own
}

// importSlice hashes an EndpointSlice of an import.
func (h summer) importSlice(s *discoveryv1.EndpointSlice) sum { return h.sliceOf(s, ownImportSlice) }

func ownImportSlice(s *discoveryv1.EndpointSlice) ownFields {
	own := ownSlice(s)
	own.Labels, own.Annotations = only(s.Labels, importSliceLabels...), nil
	return own
}
