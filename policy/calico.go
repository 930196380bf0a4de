package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// detectTimeout bounds asking which API there is.
const detectTimeout = 10 * time.Second

// ErrNoCalico is wrapped by errors that say that the cluster has no Calico, or
// not the API that was asked for. It may yet be installed.
var ErrNoCalico = errors.New("calico is not installed")

// SetClient reads and writes GlobalNetworkSets through either API.
type SetClient interface {
	Create(ctx context.Context, set *calico.GlobalNetworkSet, opts metav1.CreateOptions) (*calico.GlobalNetworkSet, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*calico.GlobalNetworkSet, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*calico.GlobalNetworkSet, error)
	List(ctx context.Context, opts metav1.ListOptions) (*calico.GlobalNetworkSetList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Calico finds out which API the local cluster's Calico has, and reaches it.
type Calico struct {
	cfg       *rest.Config
	wanted    []schema.GroupVersion
	detecting chan struct{} // one slot: held while asking which API there is

	// mu is never held during a request: status asks what is known meanwhile.
	mu      sync.Mutex
	client  SetClient // nil until an API was found
	version schema.GroupVersion
}

// NewCalico returns access to Calico in the cluster that cfg reaches. The API
// is "v3", "v1", or "auto" for the best one that is served. It makes no request.
func NewCalico(cfg *rest.Config, api string) (*Calico, error) {
	c := &Calico{cfg: rest.CopyConfig(cfg), wanted: kube.CalicoAPIs(api), detecting: make(chan struct{}, 1)}
	// Custom resources have no protobuf form, and Calico's server lacks it.
	c.cfg.AcceptContentTypes, c.cfg.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if len(c.wanted) == 0 {
		return nil, fmt.Errorf("calico API %q is none of auto, v3 and v1", api)
	}
	return c, nil
}

// API returns the group and version in use, without asking the cluster; empty:
// none was found yet.
func (c *Calico) API() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version.String()
}

// Sets returns a client of the API in use. When that isn't known it asks the
// cluster; an error wraps ErrNoCalico when there is none.
func (c *Calico) Sets(ctx context.Context) (SetClient, error) {
	if client := c.known(); client != nil {
		return client, nil
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("look for calico: %w", ctx.Err())
	case c.detecting <- struct{}{}:
	}
	defer func() { <-c.detecting }()
	// Whoever held it before may have found one.
	if client := c.known(); client != nil {
		return client, nil
	}
	ctx, cancel := context.WithTimeout(ctx, detectTimeout)
	defer cancel()
	gv, err := c.detect(ctx)
	if err != nil {
		return nil, err
	}
	client, err := newSetClient(c.cfg, gv)
	if err != nil {
		return nil, fmt.Errorf("client of %v: %w", gv, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.version = client, gv
	return client, nil
}

// known returns the client of the API in use; nil: none was found yet.
func (c *Calico) known() SetClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

// Forget makes Sets look again, because the API in use has gone.
func (c *Calico) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.version = nil, schema.GroupVersion{}
}

// detect returns the API to use.
func (c *Calico) detect(ctx context.Context) (schema.GroupVersion, error) {
	client, err := rest.UnversionedRESTClientFor(withoutGroup(c.cfg))
	if err != nil {
		return schema.GroupVersion{}, fmt.Errorf("look for calico: %w", err)
	}
	gv, err := kube.DetectCalico(ctx, client, c.wanted)
	if err == nil && gv.Empty() {
		err = fmt.Errorf("%w: no %s in %v", ErrNoCalico, kube.NetworkSets, c.wanted)
	}
	return gv, err
}

func newSetClient(cfg *rest.Config, gv schema.GroupVersion) (SetClient, error) {
	// The objects have the same fields in both groups.
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, &calico.GlobalNetworkSet{}, &calico.GlobalNetworkSetList{})
	metav1.AddToGroupVersion(scheme, gv)
	cfg = kube.GroupConfig(cfg, gv, newSetSerializer(serializer.NewCodecFactory(scheme).WithoutConversion()))
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return kube.NewObjects[calico.GlobalNetworkSet, calico.GlobalNetworkSetList](client, kube.NetworkSets, ""), nil
}

// withoutGroup returns a copy of cfg for requests that name a path.
func withoutGroup(cfg *rest.Config) *rest.Config {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	return kube.GroupConfig(cfg, metav1.Unversioned, serializer.NewCodecFactory(scheme).WithoutConversion())
}

// resource returns, for kube.ListWatch, the network sets of the API in use.
// When that has gone, the next request looks for another one.
func (c *Calico) resource(ctx context.Context) (kube.Resource[*calico.GlobalNetworkSetList], error) {
	client, err := c.Sets(ctx)
	if err != nil {
		return nil, err
	}
	return mayGo{client, c.Forget}, nil
}

// mayGo is network sets whose API may have gone, which it reports.
type mayGo struct {
	SetClient
	gone func()
}

// List implements kube.Resource.
func (m mayGo) List(ctx context.Context, options metav1.ListOptions) (*calico.GlobalNetworkSetList, error) {
	list, err := m.SetClient.List(ctx, options)
	return list, m.noted(err)
}

// Watch implements kube.Resource.
func (m mayGo) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := m.SetClient.Watch(ctx, options)
	return w, m.noted(err)
}

func (m mayGo) noted(err error) error {
	if apierrors.IsNotFound(err) {
		m.gone()
	}
	return err
}
