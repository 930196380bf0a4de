package main

import (
	"fmt"
	"net/netip"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
)

// newPrefixes returns the source of the prefixes of this node's pods.
func newPrefixes(a *agent, local *rest.Config, client kube.Client, server *kube.Server, metrics *kube.Metrics) (*pods.Source, error) {
	custom, err := dynamic.NewForConfig(local)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", a.cfg.ClusterName, err)
	}
	return pods.New(pods.Config{
		Setting: a.cfg.PodCIDRs, Cluster: a.cfg.ClusterName, Node: a.cfg.NodeName,
		Client: client, Dynamic: custom, Discovery: client.REST(), Server: server, Metrics: metrics,
		Self: func() (pods.Self, bool) {
			self, known := a.knownSelf()
			_, carries := self.Published()
			return pods.Self{PodCIDRs: self.PodCIDRs, Noted: self.Noted, Carries: carries}, known
		},
		Changed: a.podsChanged, Logger: a.log,
	}), nil
}

// podsChanged has all look again that depends on this node and on the prefixes of its
// pods.
func (a *agent) podsChanged() {
	a.publishing.Fire()
	a.routing.Fire()
	a.sourcing.Fire()
	a.judging.Fire()
}

// pods is what this node says of the addresses of its pods; nil: not known.
func (a *agent) pods() *pods.Known {
	known, _ := a.prefixes.Look() // The error is in the status.
	return known
}

// podCIDRs returns the prefixes of this node's pods, and whether they are known. Until
// they have been read, those count that the node has published before.
func (a *agent) podCIDRs() (prefixes []netip.Prefix, known bool) {
	self, told := a.knownSelf()
	switch now := a.pods(); {
	case now != nil && now.Publish:
		return now.Prefixes, true
	case now != nil:
		return self.PodCIDRs, told
	}
	carried, published := self.Published()
	return carried, told && published
}

// podsReport says which prefixes the pods of this node have.
type podsReport struct {
	Source string `json:"source"` // where they come from; empty: not decided yet
	Why    string `json:"why"`
	Known  bool   `json:"known"`
	Count  int    `json:"count"`
	// Prefixes are the first of them.
	Prefixes []string `json:"prefixes,omitempty"`
}

// maxPodPrefixes is how many prefixes of this node are named; the annotation has all.
const maxPodPrefixes = 100

func (a *agent) podsStatus() podsReport {
	choice, _ := a.prefixes.Choice()
	prefixes, known := a.podCIDRs()
	rep := podsReport{Source: choice.Source, Why: choice.Why, Known: known && a.pods() != nil, Count: len(prefixes)}
	for _, p := range prefixes[:min(len(prefixes), maxPodPrefixes)] {
		rep.Prefixes = append(rep.Prefixes, p.String())
	}
	return rep
}
