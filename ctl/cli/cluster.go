package cli

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// Cluster is a cluster that the administrator has access to.
type Cluster struct {
	// Name is the cluster's name in the configuration.
	Name string
	Access
	// Server is the API server's address in the kubeconfig.
	Server string
	// Insecure is the kubeconfig's insecure-skip-tls-verify. It applies to the
	// administrator's own requests only.
	Insecure bool

	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	resources resources
}

// Clusters makes clients for clusters, without sending a request. The error joins all
// faults.
func (s *Session) Clusters(names []string) ([]*Cluster, error) {
	var errs []error
	for i, name := range names {
		if err := validName(name); err != nil {
			errs = append(errs, err)
		}
		if slices.Contains(names[:i], name) {
			errs = append(errs, fmt.Errorf("cluster %s is named twice", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.contexts)) {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("--context %s=%s: cluster %s isn't among the arguments", name, s.contexts[name], name))
		}
	}
	if len(errs) > 0 {
		return nil, Usage(errors.Join(errs...))
	}
	config, err := s.load()
	if err != nil {
		return nil, err
	}
	var clusters []*Cluster
	for _, name := range names {
		c, err := s.cluster(config, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c.Insecure {
			s.Warn("%s: the kubeconfig skips verification of the API server's certificate (insecure-skip-tls-verify); the installed programs verify it", name)
		}
		clusters = append(clusters, c)
	}
	return clusters, errors.Join(errs...)
}

func validName(name string) error {
	if _, err := cluster.ParseName(name); err != nil {
		return fmt.Errorf("%w; for a context with another name use --context <name>=%s", err, Quote(name))
	}
	return nil
}

func (s *Session) cluster(config *clientcmdapi.Config, name string) (*Cluster, error) {
	context, given := s.contexts[name]
	if !given {
		context = name
	}
	if config.Contexts[context] == nil {
		known := strings.Join(slices.Sorted(maps.Keys(config.Contexts)), ", ")
		return nil, fmt.Errorf("%s: the kubeconfig has no context %q; it has: %s; use --context %s=<context>", name, context, known, name)
	}
	rest, err := s.context(config, context)
	if err != nil {
		return nil, fmt.Errorf("%s: context %s of the kubeconfig: %w", name, context, err)
	}
	// A person sends few requests: no client-side rate limit.
	rest.QPS, rest.Burst = -1, -1
	rest.UserAgent = "semaphorectl/" + process.Version()
	rest.WarningHandlerWithContext = noWarnings
	kube.Bound(rest, maxResponse)
	rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return answers{next} })
	c := &Cluster{Name: name, Access: Access{context, s.kubeconfig}, Server: rest.Host, Insecure: rest.Insecure, Config: rest}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("%s: context %s of the kubeconfig: %w", name, context, err)
	}
	c.Client = client
	c.Dynamic, err = dynamic.NewForConfig(rest)
	return c, err
}

// Cluster makes the client of one cluster. Other than Clusters it accepts --context of
// clusters that aren't arguments: they may be its neighbours.
func (s *Session) Cluster(name string) (*Cluster, error) {
	if err := validName(name); err != nil {
		return nil, Usage(err)
	}
	config, err := s.load()
	if err != nil {
		return nil, err
	}
	return s.cluster(config, name)
}
