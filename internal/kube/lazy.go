package kube

import (
	"sync"
)

// LazyClient returns a function that makes a client when it is first called,
// and returns the same one ever after. As long as that isn't possible, because
// a kubeconfig isn't mounted yet or is broken, each call tries again, so that
// the configuration of one remote stops neither the process nor its other
// remotes. The function may be called from any goroutine.
func LazyClient(c ClientConfig) func() (Client, error) {
	var (
		mu     sync.Mutex
		client Client
	)
	return func() (Client, error) {
		mu.Lock()
		defer mu.Unlock()
		if client != nil {
			return client, nil
		}
		cfg, err := RESTConfig(c)
		if err != nil {
			return nil, err
		}
		made, err := NewClient(cfg)
		if err != nil {
			return nil, err
		}
		client = made
		return client, nil
	}
}
