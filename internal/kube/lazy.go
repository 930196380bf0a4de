package kube

import (
	"sync"
)

// LazyClient returns a function that creates a client at the first call, and returns the
// same one afterwards. After an error, such as for a kubeconfig that is missing or invalid,
// the next call tries again, so that the configuration of one remote affects neither the
// process nor other remotes. The function is safe for concurrent use.
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
