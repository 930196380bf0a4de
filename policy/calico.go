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

// detectTimeout bounds the detection of the API.
const detectTimeout = 10 * time.Second

// ErrNoCalico is wrapped by errors of clusters without Calico, or without the configured API.
// It may be installed later.
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

// Calico detects the API of the local cluster's Calico, and has its client.
type Calico struct {
	cfg       *rest.Config
	wanted    []schema.GroupVersion
	detecting chan struct{} // one slot, taken during detection
	// mu is never held during a request, so that the status doesn't wait for it.
	mu      sync.Mutex
	client  SetClient // nil before detection
	version schema.GroupVersion
}

// NewCalico returns access to Calico in the cluster of cfg. The API is "v3", "v1", or "auto"
// for the preferred one that is served. It makes no request.
func NewCalico(cfg *rest.Config, api string) (*Calico, error) {
	c := &Calico{cfg: rest.CopyConfig(cfg), wanted: kube.CalicoAPIs(api), detecting: make(chan struct{}, 1)}
	// Neither custom resources nor Calico's API server support protobuf.
	c.cfg.AcceptContentTypes, c.cfg.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if len(c.wanted) == 0 {
		return nil, fmt.Errorf("calico API %q is not one of auto, v3 and v1", api)
	}
	return c, nil
}

// API returns the detected group and version, without a request; empty: not detected yet.
func (c *Calico) API() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version.String()
}

// Sets returns a client of the API in use, which it detects if necessary. Without an API the
// error wraps ErrNoCalico.
func (c *Calico) Sets(ctx context.Context) (SetClient, error) {
	if client := c.known(); client != nil {
		return client, nil
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("detect Calico: %w", ctx.Err())
	case c.detecting <- struct{}{}:
	}
	defer func() { <-c.detecting }()
	// Another call may have detected it meanwhile.
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

// known returns the client of the API in use; nil: not detected yet.
func (c *Calico) known() SetClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

// Forget makes Sets detect the API again, after it was removed.
func (c *Calico) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.version = nil, schema.GroupVersion{}
}

// detect returns the API to use.
func (c *Calico) detect(ctx context.Context) (schema.GroupVersion, error) {
	client, err := rest.UnversionedRESTClientFor(withoutGroup(c.cfg))
	if err != nil {
		return schema.GroupVersion{}, fmt.Errorf("detect Calico: %w", err)
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
	cfg = kube.GroupConfig(cfg, gv, serializer.NewCodecFactory(scheme).WithoutConversion())
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

// resource returns the network sets for kube.ListWatch. When the API is removed, the next
// request detects it again.
func (c *Calico) resource(ctx context.Context) (kube.Resource[*calico.GlobalNetworkSetList], error) {
	client, err := c.Sets(ctx)
	if err != nil {
		return nil, err
	}
	return mayGo{client, c.Forget}, nil
}

// mayGo calls gone when the API has been removed.
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
