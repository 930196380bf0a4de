package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// allRoutes shows the agent's routes on a node. "linkdown" is the kernel's word for
// a link that no process serves.
func allRoutes(ctx context.Context, node *testbed.Node) (string, error) {
	var all string
	for _, family := range []string{"-4", "-6"} {
		out, err := node.Run(ctx, "ip", family, "route", "show", "table", "all", "proto", "115")
		if err != nil {
			return "", err
		}
		all += strings.ReplaceAll(out, " linkdown", "")
	}
	return all, nil
}

// testRestart restarts an agent with an established connection.
func testRestart(t *testing.T, a *programs.Agent, from, to *testbed.Pod, how string) {
	ctx := within(t, 2*time.Minute)
	before, err := a.Status(ctx)
	must(t, err)
	routes, err := allRoutes(ctx, a.Node)
	must(t, err)
	conn := dialEcho(t, from, to)
	must(t, conn.exchange("before"))

	written := monitor(t, a.Node)
	if how == "SIGTERM" {
		must(t, a.Stop(within(t, time.Minute)))
	} else {
		a.Kill()
	}
	if got, err := allRoutes(ctx, a.Node); err != nil || got != routes {
		t.Errorf("routes while the agent is down: %v\n%s\nbefore:\n%s", err, got, routes)
	}
	// Data that is sent meanwhile may wait; the connection survives.
	must(t, conn.send("while it is down"))
	must(t, a.Start())
	must(t, conn.receive("while it is down"))
	must(t, conn.exchange("after"))
	eventually(t, time.Minute, "the agent to be ready", a.Ready)

	after, err := a.Status(ctx)
	must(t, err)
	was, is := before.Link("gcp"), after.Link("gcp")
	if was != is {
		t.Errorf("the device was %s and is %s", was, is)
	}
	if lines := written(); len(lines) > 0 {
		t.Errorf("ip monitor over the restart:\n%s", strings.Join(lines, "\n"))
	}
	if got, err := allRoutes(ctx, a.Node); err != nil || got != routes {
		t.Errorf("routes after the restart: %v\n%s\nbefore:\n%s", err, got, routes)
	}
}

// testRestartWithoutPort starts an agent, and an engine, while another process has the port,
// and after that. The device has another one meanwhile; routes, and the source in them,
// stay as they are.
func testRestartWithoutPort(t *testing.T, a *programs.Agent, from, to *testbed.Pod) {
	ctx := within(t, 4*time.Minute)
	routes, err := allRoutes(ctx, a.Node)
	must(t, err)
	// As in a pod. It continues the devices of the engine that the agent has started, which ends.
	must(t, a.StartEngine())
	eventually(t, time.Minute, "the engine to serve", func(context.Context) error {
		if !strings.Contains(a.Engine().Log(), "msg=starting") {
			return errors.New(a.Engine().Log())
		}
		return nil
	})
	must(t, programs.WaitReach(within(t, time.Minute), from, to))
	written := monitor(t, a.Node)
	a.Kill()
	a.Engine().Kill()
	thief := newThief(t, a.Node)
	must(t, a.StartEngine())
	must(t, a.Start())
	failing := func(want bool) func(context.Context) error {
		return func(ctx context.Context) error {
			status, err := a.Status(ctx)
			if err == nil && (status.Failure("device gcp") != "") != want {
				err = fmt.Errorf("failing: %v", status.Conditions)
			}
			return err
		}
	}
	eventually(t, time.Minute, "the status to report the port", failing(true))
	must(t, programs.WaitReach(within(t, time.Minute), from, to))
	thief()
	// The loop tries again after a minute at most.
	eventually(t, 2*time.Minute, "the device to have its port", failing(false))
	must(t, programs.WaitReach(within(t, time.Minute), from, to))
	if lines := written(); len(lines) > 0 {
		t.Errorf("ip monitor over the restart:\n%s", strings.Join(lines, "\n"))
	}
	if got, err := allRoutes(ctx, a.Node); err != nil || got != routes {
		t.Errorf("routes after the restart: %v\n%s\nbefore:\n%s", err, got, routes)
	}
}

// newThief takes the agent's port, of both families, until the returned function is
// called.
func newThief(t *testing.T, node *testbed.Node) (giveBack func()) {
	t.Helper()
	var conn net.PacketConn
	// The port becomes free shortly after its processes have ended.
	eventually(t, time.Minute, "the port", func(context.Context) error {
		return node.Space().Do(func() (err error) {
			conn, err = net.ListenPacket("udp", "[::]:51820")
			return err
		})
	})
	return func() { must(t, conn.Close()) }
}

// monitor records what "ip monitor link route rule" prints on a node, until the
// returned function is called, which returns it, a line each.
//
// Carrier changes of wireguard.gcp are left out: as a TUN it has a carrier while a process
// holds it, which changes (NO-CARRIER, LOWER_UP, state) with the process, as do its offloads
// (FEATURE CHANGE). Its deletion, or another index, isn't left out. Messages about the ports
// of the bridge of the node's pods are left out, too.
func monitor(t *testing.T, node *testbed.Node) (written func() []string) {
	t.Helper()
	index, err := node.Run(t.Context(), "cat", "/sys/class/net/wireguard.gcp/ifindex")
	must(t, err)
	carrier := strings.TrimSpace(index) + ": wireguard.gcp: <"
	process, err := node.Start(sandbox.Command{Name: fmt.Sprintf("ip-monitor-%d", time.Now().UnixNano()), Path: "/usr/sbin/ip", Args: []string{"-ts", "-o", "monitor", "link", "route", "rule"}})
	must(t, err)
	t.Cleanup(process.Kill)
	// The monitor prints in order: a foreign rule marks begin and end.
	mark := func(priority int) {
		t.Helper()
		eventually(t, time.Minute, "the monitor", func(ctx context.Context) error {
			rule := []string{"priority", fmt.Sprint(priority), "lookup", "main"}
			if _, err := node.Run(ctx, "ip", append([]string{"rule", "add"}, rule...)...); err != nil {
				return err
			}
			if _, err := node.Run(ctx, "ip", append([]string{"rule", "del"}, rule...)...); err != nil {
				return err
			}
			if !strings.Contains(process.Log(), fmt.Sprintf("%d:\tfrom all lookup main", priority)) {
				return errors.New("it hasn't printed the mark yet")
			}
			return nil
		})
	}
	mark(77)
	return func() (lines []string) {
		t.Helper()
		mark(78)
		for line := range strings.Lines(process.Log()) {
			switch {
			case strings.Contains(line, "7:\tfrom all lookup main"), strings.Contains(line, "8:\tfrom all lookup main"):
			case strings.Contains(line, carrier) && !strings.Contains(line, "Deleted"):
			case strings.Contains(line, " master cni0 "):
			case strings.TrimSpace(line) != "":
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
}
