// Command semaphorectl joins and separates clusters, and diagnoses their faults. It runs on
// administrators' machines with Linux, macOS or Windows, also as the kubectl plugin
// "kubectl semaphore", and isn't part of the image.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

func main() {
	// SIGHUP comes when a connection to the terminal is lost.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal kills the process.
	context.AfterFunc(ctx, stop)
	session := cli.NewSession(os.Stdin, os.Stdout, os.Stderr)
	cli.DiscardLogs()
	code := cli.Run(ctx, session, newRoot(session, calledAs(os.Args[0])), os.Args[1:])
	stop()
	os.Exit(code)
}

// calledAs returns the name that the user has called the program by: kubectl finds plugins
// by their file names (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
func calledAs(file string) string {
	if strings.HasPrefix(filepath.Base(file), "kubectl-") {
		return "kubectl semaphore"
	}
	return "semaphorectl"
}
