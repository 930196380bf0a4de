package programs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Clean returns an error with what the agent has left on a node, except for its keys.
func Clean(ctx context.Context, node *testbed.Node) error {
	var errs []error
	// ip complains about links of pods whose other end is being deleted, and lists them.
	for what, command := range map[string][]string{
		"links":             {"sh", "-c", "ip -o link 2>/dev/null | grep -e wireguard -e 'semaphore ' || true"},
		"IPv4 routes":       {"sh", "-c", "ip -4 route show table all proto 115"},
		"IPv6 routes":       {"sh", "-c", "ip -6 route show table all proto 115"},
		"policy rules":      {"sh", "-c", "ip -4 rule | grep -v -e ^0: -e ^32766: -e ^32767: || true; ip -6 rule | grep -v -e ^0: -e ^32766: || true"},
		"sockets":           {"sh", "-c", "ls /var/run/wireguard"},
		"files beside keys": {"sh", "-c", "ls /var/lib/semaphore-wireguard | grep -v '[.]key$' || true"},
	} {
		out, err := node.Run(ctx, command[0], command[1:]...)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("%s of %s: %s", what, node.Name, out)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
