package kube

import (
	"fmt"
	"net/http"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	multiclusterv1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// Client has the resources that the programs use; an empty namespace means all namespaces.
// client-go's clientset, which package clientset adapts to Client, links the types of all
// groups of Kubernetes, a third of a program's size.
type Client interface {
	EndpointSlices(namespace string) Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]
	Events(namespace string) Objects[*corev1.Event, *corev1.EventList]
	Leases(namespace string) Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	Namespaces() Objects[*corev1.Namespace, *corev1.NamespaceList]
	Nodes() Objects[*corev1.Node, *corev1.NodeList]
	Pods(namespace string) Objects[*corev1.Pod, *corev1.PodList]
	Secrets(namespace string) Objects[*corev1.Secret, *corev1.SecretList]
	ServiceExports(namespace string) Objects[*multiclusterv1.ServiceExport, *multiclusterv1.ServiceExportList]
	ServiceImports(namespace string) Objects[*multiclusterv1.ServiceImport, *multiclusterv1.ServiceImportList]
	ServiceCIDRs() Objects[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList]
	Services(namespace string) Objects[*corev1.Service, *corev1.ServiceList]
	WireguardPeers(namespace string) Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList]

	SubjectAccessReviews() Reviews[*authorizationv1.SubjectAccessReview]
	TokenReviews() Reviews[*authenticationv1.TokenReview]

	// REST makes other requests. Its resources are those of the core group.
	REST() rest.Interface
}

// NewClient returns a client whose groups share connections and the rate limit.
func NewClient(cfg *rest.Config) (Client, error) {
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return newClient(cfg, shared)
}

func newClient(cfg *rest.Config, shared *http.Client) (Client, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.RateLimiter == nil && cfg.QPS > 0 {
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, cfg.Burst)
	}
	g := &groups{}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		authenticationv1.SchemeGroupVersion: &g.authentication,
		authorizationv1.SchemeGroupVersion:  &g.authorization,
		coordinationv1.SchemeGroupVersion:   &g.coordination,
		corev1.SchemeGroupVersion:           &g.core,
		discoveryv1.SchemeGroupVersion:      &g.discovery,
		networkingv1.SchemeGroupVersion:     &g.networking,
		multicluster():                      &g.multicluster,
		v1alpha1.GroupVersion():             &g.semaphore,
	} {
		group := GroupConfig(cfg, gv, builtin())
		if gv == multicluster() || gv == v1alpha1.GroupVersion() {
			group.ContentType = runtime.ContentTypeJSON // as of all custom resources
			group.AcceptContentTypes = runtime.ContentTypeJSON
		}
		client, err := rest.RESTClientForConfigAndClient(group, shared)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		*to = client
	}
	return g, nil
}

// multicluster is the group of the Multi-Cluster Services API.
func multicluster() schema.GroupVersion { return schema.GroupVersion(multiclusterv1.GroupVersion) }

// builtin returns the serializer of the groups of Client.
var builtin = sync.OnceValue(func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, authorizationv1.AddToScheme, coordinationv1.AddToScheme,
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, multiclusterv1.Install, v1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
})

// groups are the clients of each group.
type groups struct {
	authentication, authorization, coordination, core, discovery, networking, multicluster, semaphore rest.Interface
}

func (g *groups) EndpointSlices(namespace string) Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
	return NewObjects[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](g.discovery, "endpointslices", namespace)
}

func (g *groups) Events(namespace string) Objects[*corev1.Event, *corev1.EventList] {
	return NewObjects[corev1.Event, corev1.EventList](g.core, "events", namespace)
}

func (g *groups) Leases(namespace string) Objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
	return NewObjects[coordinationv1.Lease, coordinationv1.LeaseList](g.coordination, "leases", namespace)
}

func (g *groups) Namespaces() Objects[*corev1.Namespace, *corev1.NamespaceList] {
	return NewObjects[corev1.Namespace, corev1.NamespaceList](g.core, "namespaces", "")
}

func (g *groups) Nodes() Objects[*corev1.Node, *corev1.NodeList] {
	return NewObjects[corev1.Node, corev1.NodeList](g.core, "nodes", "")
}

func (g *groups) Pods(namespace string) Objects[*corev1.Pod, *corev1.PodList] {
	return NewObjects[corev1.Pod, corev1.PodList](g.core, "pods", namespace)
}

func (g *groups) Secrets(namespace string) Objects[*corev1.Secret, *corev1.SecretList] {
	return NewObjects[corev1.Secret, corev1.SecretList](g.core, "secrets", namespace)
}

func (g *groups) ServiceCIDRs() Objects[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList] {
	return NewObjects[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](g.networking, "servicecidrs", "")
}

func (g *groups) ServiceExports(namespace string) Objects[*multiclusterv1.ServiceExport, *multiclusterv1.ServiceExportList] {
	return NewObjects[multiclusterv1.ServiceExport, multiclusterv1.ServiceExportList](g.multicluster, "serviceexports", namespace)
}

func (g *groups) ServiceImports(namespace string) Objects[*multiclusterv1.ServiceImport, *multiclusterv1.ServiceImportList] {
	return NewObjects[multiclusterv1.ServiceImport, multiclusterv1.ServiceImportList](g.multicluster, "serviceimports", namespace)
}

func (g *groups) Services(namespace string) Objects[*corev1.Service, *corev1.ServiceList] {
	return NewObjects[corev1.Service, corev1.ServiceList](g.core, "services", namespace)
}

func (g *groups) WireguardPeers(namespace string) Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] {
	return NewObjects[v1alpha1.WireguardPeers, v1alpha1.WireguardPeersList](g.semaphore, v1alpha1.Resource, namespace)
}

func (g *groups) SubjectAccessReviews() Reviews[*authorizationv1.SubjectAccessReview] {
	return newReviews[authorizationv1.SubjectAccessReview](g.authorization, "subjectaccessreviews")
}

func (g *groups) TokenReviews() Reviews[*authenticationv1.TokenReview] {
	return newReviews[authenticationv1.TokenReview](g.authentication, "tokenreviews")
}

func (g *groups) REST() rest.Interface { return g.core }
