// Package inspecttest creates surveys for tests.
package inspecttest

import (
	"fmt"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Now is the time of the surveys.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Key is the public key of a node for a remote.
func Key(node, remote string) string { return "key of " + node + " for " + remote }

// Pair returns surveys of aws and gcp with so many nodes each, without faults.
func Pair(nodes int) []*inspect.Cluster { return Mesh(nodes, "aws", "gcp") }

// Mesh returns surveys of clusters with so many nodes each, without faults.
func Mesh(nodes int, names ...string) []*inspect.Cluster {
	clusters := make([]*inspect.Cluster, len(names))
	for i, name := range names {
		c := &inspect.Cluster{Name: name, Access: cli.Access{Context: "the-" + name}, Taken: Now}
		c.Kubernetes.Value = "v1.36.3"
		c.Workloads.Value = []inspect.Workload{{Kind: "DaemonSet", Name: inspect.WireGuard, Wanted: int32(nodes), Ready: int32(nodes)}}
		for n := range nodes {
			node := inspect.Node{Name: fmt.Sprintf("%s-%d", name, n+1), Ready: "True", Renewed: Now.Add(-5 * time.Second), Annotations: map[string]string{}}
			agent := &statuspage.Agent{Version: "v1", Cluster: name, Node: node.Name, Published: true, Conditions: []statuspage.Condition{}}
			for _, other := range names {
				if other != name {
					group := other + "." + inspect.AnnotationGroup
					node.Annotations[group+"/pubKey"], node.Annotations[group+"/endpoint"] = Key(node.Name, other), "10.66.0.1:51820"
					agent.Remotes = append(agent.Remotes, remote(node.Name, name, other, nodes))
				}
			}
			pod := inspect.Pod{Name: "agent-" + node.Name, Node: node.Name, Program: inspect.WireGuard, Phase: "Running", Ready: true, IP: "10.66.0.1"}
			c.Nodes.Value, c.Pods.Value = append(c.Nodes.Value, node), append(c.Pods.Value, pod)
			c.Agents = append(c.Agents, inspect.Reported[statuspage.Agent]{Pod: pod, Fact: inspect.Fact[*statuspage.Agent]{Source: "status of " + node.Name, Value: agent}})
		}
		clusters[i] = c
	}
	return clusters
}

// remote returns the report of a node's agent about another cluster.
func remote(node, cluster, other string, nodes int) statuspage.Remote {
	r := statuspage.Remote{
		Name: other, Source: "api", PodSubnets: []string{"10.4.0.0/16"},
		Device: statuspage.Device{Name: "wireguard." + other, Backend: "kernel", PublicKey: Key(node, other), Index: 7, MTU: 1420},
	}
	r.API.Synced, r.API.LastContact = true, &Now
	for p := range nodes {
		peer := fmt.Sprintf("%s-%d", other, p+1)
		r.Peers = append(r.Peers, statuspage.Peer{
			Node: peer, Health: "up", Endpoint: "10.66.0.1:51820", PublicKey: Key(peer, cluster), RxBytes: 1, TxBytes: 1,
			Path: &statuspage.Path{State: "up", Sign: "answer", Answers: true, Since: Now, RTT: 0.0123},
		})
	}
	return r
}
