// Command semaphore-wireguard keeps a WireGuard mesh between this node and the
// nodes of other Kubernetes clusters. It runs on every node, on the host's
// network, with the capability NET_ADMIN.
package main

import (
	"os"

	"github.com/kube-semaphore/kube-semaphore/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:])) }
