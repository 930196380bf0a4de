// Command semaphore-engine serves WireGuard devices on nodes whose kernel has no
// WireGuard, for semaphore-wireguard, which may end and begin anew meanwhile. It
// needs the capability NET_ADMIN and nothing of Kubernetes.
package main

import (
	"os"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine"
)

func main() { os.Exit(engine.Main(os.Args)) }
