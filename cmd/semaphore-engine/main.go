// Command semaphore-engine serves WireGuard devices on nodes whose kernel has no
// WireGuard. semaphore-wireguard configures them and may restart meanwhile. The engine
// needs the capability NET_ADMIN and no access to Kubernetes.
package main

import (
	"os"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine"
)

func main() { os.Exit(engine.Main(os.Args)) }
