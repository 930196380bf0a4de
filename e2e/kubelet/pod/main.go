// Command pod is what pods of the tests run: "pod pause" holds namespaces, "pod
// meter" measures.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case len(os.Args) == 2 && os.Args[1] == "pause":
		<-ctx.Done()
		return nil
	case len(os.Args) == 2 && os.Args[1] == "meter":
		return meter.New(meter.StreamPort).Serve(ctx)
	default:
		return fmt.Errorf("usage: %s pause|meter", os.Args[0])
	}
}
