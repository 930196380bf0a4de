package kube

import (
	"fmt"
	"net/http"

	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	discovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networking "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Client reaches the API groups that the programs use. client-go's clientset, and the
// fake of it, are one as well; programs that link that have the code of all groups, which
// is two fifths of their size.
type Client interface {
	AuthenticationV1() authentication.AuthenticationV1Interface
	AuthorizationV1() authorization.AuthorizationV1Interface
	CoordinationV1() coordination.CoordinationV1Interface
	CoreV1() core.CoreV1Interface
	DiscoveryV1() discovery.DiscoveryV1Interface
	NetworkingV1() networking.NetworkingV1Interface
}

// NewClient returns a client whose groups share connections and the limit of requests.
func NewClient(cfg *rest.Config) (Client, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.RateLimiter == nil && cfg.QPS > 0 {
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, cfg.Burst)
	}
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	g := &groups{}
	for _, err := range []error{
		open(&g.authentication, authentication.NewForConfigAndClient, cfg, shared),
		open(&g.authorization, authorization.NewForConfigAndClient, cfg, shared),
		open(&g.coordination, coordination.NewForConfigAndClient, cfg, shared),
		open(&g.core, core.NewForConfigAndClient, cfg, shared),
		open(&g.discovery, discovery.NewForConfigAndClient, cfg, shared),
		open(&g.networking, networking.NewForConfigAndClient, cfg, shared),
	} {
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
	}
	return g, nil
}

func open[T any](to *T, client func(*rest.Config, *http.Client) (T, error), cfg *rest.Config, shared *http.Client) (err error) {
	*to, err = client(cfg, shared)
	return err
}

// groups are the clients of each group.
type groups struct {
	authentication *authentication.AuthenticationV1Client
	authorization  *authorization.AuthorizationV1Client
	coordination   *coordination.CoordinationV1Client
	core           *core.CoreV1Client
	discovery      *discovery.DiscoveryV1Client
	networking     *networking.NetworkingV1Client
}

func (g *groups) AuthenticationV1() authentication.AuthenticationV1Interface { return g.authentication }
func (g *groups) AuthorizationV1() authorization.AuthorizationV1Interface    { return g.authorization }
func (g *groups) CoordinationV1() coordination.CoordinationV1Interface       { return g.coordination }
func (g *groups) CoreV1() core.CoreV1Interface                               { return g.core }
func (g *groups) DiscoveryV1() discovery.DiscoveryV1Interface                { return g.discovery }
func (g *groups) NetworkingV1() networking.NetworkingV1Interface             { return g.networking }
