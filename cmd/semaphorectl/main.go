// Command semaphorectl joins clusters, takes them apart, and says what is wrong with
// them. It runs where an administrator has a kubeconfig, on Linux, macOS and Windows,
// also as the kubectl plugin "kubectl semaphore", and is no part of the image.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process, whatever it does.
	context.AfterFunc(ctx, stop)
	session := cli.NewSession(os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)
	session.AdoptLogs()
	code := cli.Run(ctx, session, newRoot(session, calledAs(os.Args[0])), os.Args[1:])
	stop()
	os.Exit(code)
}

// calledAs is how the user has called us: kubectl finds plugins by the names of their
// files (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
func calledAs(file string) string {
	if strings.HasPrefix(filepath.Base(file), "kubectl-") {
		return "kubectl semaphore"
	}
	return "semaphorectl"
}
