package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
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
			published, carries := self.Published()
			slices.SortFunc(published, netip.Prefix.Compare)
			own := slices.SortedFunc(slices.Values(self.PodCIDRs), netip.Prefix.Compare)
			return pods.Self{
				PodCIDRs: self.PodCIDRs, Noted: self.Noted, Plain: self.Plain,
				Carries: carries && !slices.Equal(published, own),
			}, known
		},
		Changed: func() { a.happened(podPrefixesChanged, nil) }, Logger: a.log,
	}), nil
}

// pods returns the pod prefixes of this node; nil: not read yet.
func (a *agent) pods() *pods.Known {
	known, _ := a.prefixes.Current() // The error is in the status.
	return known
}

// podCIDRs returns the prefixes of this node's pods, and whether they are known. Until
// they have been read, the published ones count.
func (a *agent) podCIDRs() (prefixes []netip.Prefix, known bool) {
	self, synced := a.knownSelf()
	switch now := a.pods(); {
	case now != nil && now.Publish:
		return now.Prefixes, true
	case now != nil:
		return self.PodCIDRs, synced
	}
	carried, published := self.Published()
	return carried, synced && published
}

// maxPodPrefixes bounds the prefixes in the report; the annotation has all.
const maxPodPrefixes = 100

func (a *agent) podsStatus() *statuspage.Pods {
	choice, _ := a.prefixes.Choice()
	prefixes, known := a.podCIDRs()
	rep := &statuspage.Pods{Source: choice.Source, Why: choice.Why, Known: known && a.pods() != nil, Count: len(prefixes)}
	for _, p := range prefixes[:min(len(prefixes), maxPodPrefixes)] {
		rep.Prefixes = append(rep.Prefixes, p.String())
	}
	return rep
}
