package agent

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// newReporter returns the reporter of paths that are down, by which the service mirror
// withdraws endpoints. The report is owned by the agent's pod; outside of a pod it is nil.
func (a *agent) newReporter(client kube.Client) *peers.Reporter {
	pod := a.cfg.Pod
	if !pod.Known() {
		return nil
	}
	return peers.NewReporter(peers.ReporterConfig{
		Leases: client.Leases(pod.Namespace), Namespace: pod.Namespace, Node: a.cfg.NodeName,
		Owner: metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: types.UID(pod.UID)},
		Paths: a.paths, Reporters: a.local.nodes.Len, Logger: a.log,
	})
}

// paths returns the paths to the nodes of each admitted remote.
func (a *agent) paths() map[string][]paths.Path {
	all := map[string][]paths.Path{}
	for _, r := range a.admitted() {
		all[r.cfg.Name] = r.controller.Paths()
	}
	return all
}
