// Package clientset adapts client-go's clientset to kube.Client, for tests with the fake
// clientset. It links the code of all groups of Kubernetes.
package clientset

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	multiclusterv1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// Client returns a client that uses all for its requests.
func Client(all kubernetes.Interface) kube.Client { return client{all} }

type client struct{ all kubernetes.Interface }

func (c client) EndpointSlices(namespace string) kube.Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
	return c.all.DiscoveryV1().EndpointSlices(namespace)
}

func (c client) Events(namespace string) kube.Objects[*corev1.Event, *corev1.EventList] {
	return c.all.CoreV1().Events(namespace)
}

func (c client) Leases(namespace string) kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
	return c.all.CoordinationV1().Leases(namespace)
}

func (c client) Namespaces() kube.Objects[*corev1.Namespace, *corev1.NamespaceList] {
	return c.all.CoreV1().Namespaces()
}

func (c client) Nodes() kube.Objects[*corev1.Node, *corev1.NodeList] { return c.all.CoreV1().Nodes() }

func (c client) Pods(namespace string) kube.Objects[*corev1.Pod, *corev1.PodList] {
	return c.all.CoreV1().Pods(namespace)
}

func (c client) Secrets(namespace string) kube.Objects[*corev1.Secret, *corev1.SecretList] {
	return c.all.CoreV1().Secrets(namespace)
}

func (c client) ServiceCIDRs() kube.Objects[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList] {
	return c.all.NetworkingV1().ServiceCIDRs()
}

// ServiceExports panics: client-go's clientset has no custom resources.
func (c client) ServiceExports(string) kube.Objects[*multiclusterv1.ServiceExport, *multiclusterv1.ServiceExportList] {
	panic("no clientset has ServiceExports")
}

// ServiceImports panics: client-go's clientset has no custom resources.
func (c client) ServiceImports(string) kube.Objects[*multiclusterv1.ServiceImport, *multiclusterv1.ServiceImportList] {
	panic("no clientset has ServiceImports")
}

func (c client) Services(namespace string) kube.Objects[*corev1.Service, *corev1.ServiceList] {
	return c.all.CoreV1().Services(namespace)
}

// WireguardPeers panics: client-go's clientset has no custom resources.
func (c client) WireguardPeers(string) kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] {
	panic("no clientset has WireguardPeers")
}

func (c client) SubjectAccessReviews() kube.Reviews[*authorizationv1.SubjectAccessReview] {
	return c.all.AuthorizationV1().SubjectAccessReviews()
}

func (c client) TokenReviews() kube.Reviews[*authenticationv1.TokenReview] {
	return c.all.AuthenticationV1().TokenReviews()
}

func (c client) REST() rest.Interface { return c.all.CoreV1().RESTClient() }
