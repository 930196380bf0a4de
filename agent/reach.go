package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// terminationLog is the default terminationMessagePath of the Pod API, where the kubelet
// reads the container's result.
const terminationLog = "/dev/termination-log"

// runReach runs the subcommand "reach", which semaphorectl starts in a temporary pod. It
// doesn't touch the agent's state. Its only argument is a reach.Request in JSON.
func runReach(args []string) int {
	var request reach.Request
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &request) != nil {
		fmt.Fprintln(os.Stderr, "reach: expected one argument, a request of semaphorectl in JSON")
		return process.ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	result := reach.Check(ctx, request)
	if request.Kernel {
		if kernel, err := tunnel.Supported(); err == nil {
			result.Kernel = &kernel
		}
		if err := routes.RequireFilter(ctx); err != nil {
			result.NoFilter = err.Error()
		}
	}
	code := process.ExitWell
	if request.ServeFor > 0 {
		if err := reach.Serve(ctx, request); err != nil {
			result.Serving, code = err.Error(), process.ExitFaults
		}
	}
	if len(request.Try)+len(request.Asks) > 0 {
		reach.TryAll(ctx, request, &result)
	}
	for i, asked := range result.Services {
		if request.Must && (asked.Name != "" || len(asked.Found) > 0 || len(asked.Failed) > 0) {
			fmt.Fprintf(os.Stderr, "reach: %s %v: %s %v %v\n", request.Asks[i].Name, request.Asks[i].Addresses, asked.Name, asked.Found, asked.Failed)
			code = process.ExitFaults
		}
	}
	encoded, err := result.Encode()
	if err == nil {
		err = os.WriteFile(terminationLog, encoded, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reach:", err)
		return process.ExitFaults
	}
	return code
}
