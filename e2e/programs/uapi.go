package programs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// DialUAPI connects to the UAPI socket of a device that a process on a node serves, as
// soon as that process listens. Polling with wg(8) instead would be a race: it removes a
// socket that refuses, as one does between bind and listen, and wireguard-go ends when
// its socket is gone.
func DialUAPI(ctx context.Context, process *sandbox.Process, device string) (net.Conn, error) {
	// Mostly a link, which would lead out of the process's root.
	run, err := filepath.EvalSymlinks("/var/run")
	if err != nil {
		return nil, err
	}
	// The socket is in the node's mount namespace, to which the process is the way.
	path := fmt.Sprintf("/proc/%d/root%s/wireguard/%s.sock", process.PID(), run, device)
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-process.Done():
			return nil, fmt.Errorf("%s ended: %s", process.Command().Name, process.Tail(3))
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s of %s: %w", device, process.Command().Name, errors.Join(context.Cause(ctx), err))
		case <-time.After(time.Millisecond):
		}
	}
}
