package kube

import (
	"sync"

	"k8s.io/client-go/kubernetes"
)

// LazyClient returns a function that makes a client when it is first called,
// and returns the same one ever after. As long as that isn't possible, because
// a kubeconfig isn't mounted yet or is broken, each call tries again, so that
// the configuration of one remote stops neither the process nor its other
// remotes. The function may be called from any goroutine.
func LazyClient(c ClientConfig) func() (kubernetes.Interface, error) {
	var (
		mu     sync.Mutex
		client kubernetes.Interface
	)
	return func() (kubernetes.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		if client != nil {
			return client, nil
		}
		cfg, err := RESTConfig(c)
		if err != nil {
			return nil, err
		}
		made, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return nil, err
		}
		client = made
		return client, nil
	}
}
