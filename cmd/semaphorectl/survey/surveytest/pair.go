// Package surveytest makes surveys for tests.
package surveytest

import (
	"fmt"
	"time"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// Now is when surveys are taken.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Key is the public key of a node for a remote.
func Key(node, remote string) string { return "key of " + node + " for " + remote }

// Pair are the clusters aws and gcp with so many nodes each, in which all is well.
func Pair(nodes int) []*survey.Cluster {
	names := []string{"aws", "gcp"}
	clusters := make([]*survey.Cluster, 2)
	for i, name := range names {
		other := names[1-i]
		c := &survey.Cluster{Name: name, Context: "the-" + name, Taken: Now}
		c.Kubernetes.Value = "v1.36.3"
		c.Workloads.Value = []survey.Workload{{Kind: "DaemonSet", Name: survey.WireGuard, Wanted: int32(nodes), Ready: int32(nodes)}}
		for n := range nodes {
			node := fmt.Sprintf("%s-%d", name, n+1)
			group := other + "." + survey.AnnotationGroup
			c.Nodes.Value = append(c.Nodes.Value, survey.Node{
				Name: node, Ready: "True", Renewed: Now.Add(-5 * time.Second),
				Annotations: map[string]string{group + "/pubKey": Key(node, other), group + "/endpoint": "10.66.0.1:51820"},
			})
			remote := survey.Remote{
				Name: other, Source: "api", PodSubnets: []string{"10.4.0.0/16"},
				Device: survey.Device{Name: "wireguard." + other, Backend: "kernel", PublicKey: Key(node, other), Index: 7, MTU: 1420},
			}
			remote.API.Synced, remote.API.LastContact = true, &Now
			for p := range nodes {
				peer := fmt.Sprintf("%s-%d", other, p+1)
				remote.Peers = append(remote.Peers, survey.Peer{
					Node: peer, Health: "up", Endpoint: "10.66.0.1:51820", PublicKey: Key(peer, name), RxBytes: 1, TxBytes: 1,
					Path: &survey.Path{State: "up", Sign: "answer", Answers: true, Since: Now, RTT: 0.0123},
				})
			}
			pod := survey.Pod{Name: "agent-" + node, Node: node, Program: survey.WireGuard, Phase: "Running", Ready: true, IP: "10.66.0.1"}
			c.Pods.Value = append(c.Pods.Value, pod)
			c.Agents = append(c.Agents, survey.Reported[survey.Agent]{
				Pod: pod,
				Fact: survey.Fact[*survey.Agent]{Source: "status of " + node, Value: &survey.Agent{
					Version: "v1", Cluster: name, Node: node, Published: true, Failing: map[string]string{}, Remotes: []survey.Remote{remote},
				}},
			})
		}
		clusters[i] = c
	}
	return clusters
}
