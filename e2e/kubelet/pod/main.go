// Command pod is the program of the tests' pods: "pod pause" holds namespaces, "pod meter"
// measures, "pod dns" runs CoreDNS.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

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
	case len(os.Args) == 3 && os.Args[1] == "dns":
		return serveNames(ctx, os.Args[2])
	default:
		return fmt.Errorf("usage: %s pause|meter|dns COREFILE", os.Args[0])
	}
}

// reloadEvery is how often CoreDNS's plugin reload looks by default.
const reloadEvery = 30 * time.Second

// serveNames runs CoreDNS, and restarts it when its configuration has changed: our build lacks
// the plugin reload.
func serveNames(ctx context.Context, corefile string) error {
	cmd := exec.CommandContext(ctx, "/bin/coredns", "-conf", corefile)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	read, err := os.ReadFile(corefile)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
		}
		now, err := os.ReadFile(corefile)
		if err != nil || bytes.Equal(now, read) {
			continue
		}
		read = now
		if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			return err
		}
	}
}
