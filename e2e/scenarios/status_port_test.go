package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestStatusPort lets pods of the own and of the remote cluster scan for the agent's ports,
// and then exhaust them: the kubelet's probes, which use the socket, and the other port go on.
// It isn't run in parallel: a thousand clients load this machine.
func TestStatusPort(t *testing.T) {
	p := startPair(t, 1)
	agent, local, remote := p.Agents[0], p.Pods[0], p.Pods[1]
	node := agent.Node
	agent.Env["SEMAPHORE_PROBE_SOCKET"] = "/run/probe.sock" // as in our manifest
	must(t, agent.Stop(within(t, time.Minute)))
	must(t, agent.Start())
	eventually(t, time.Minute, "the agent to be ready", agent.Ready)
	kubelet := func() {
		t.Helper()
		for range 20 {
			must(t, patiently(func(ctx context.Context) error { return probe(ctx, agent, p.Binary, "/healthz") }))
		}
	}
	// Control: remote pods do reach the gateway, an address of the node.
	must(t, node.Serve(t.Context(), 7999, nil))
	internal := node.Addresses()[0]

	t.Run("at the InternalIP alone", func(t *testing.T) {
		_, err := local.Get(within(t, time.Minute), url(internal, programs.StatusPort, "/status"))
		must(t, err)
		for _, prefix := range node.PodCIDRs {
			gateway := prefix.Addr().Next()
			_, err := remote.Get(within(t, repair), url(gateway, 7999, "/"))
			must(t, err)
			for _, port := range []int{programs.StatusPort, programs.ProbePort} {
				closedPort(t, local, gateway, port)
			}
			closedPort(t, remote, gateway, programs.ProbePort)
			// Packets through the tunnel to the port of the status are dropped.
			conn, err := remote.Dial(within(t, 3*time.Second), "tcp", netip.AddrPortFrom(gateway, programs.StatusPort).String())
			if err == nil {
				_ = conn.Close()
				t.Errorf("%s answers the remote at the port of the status", gateway)
			}
		}
		closedPort(t, local, internal, programs.ProbePort)
		closedPort(t, &node.Host, netip.MustParseAddr("127.0.0.1"), programs.StatusPort)
	})

	t.Run("probes are not answered past the loopback where its addresses are routed", func(t *testing.T) {
		looped := routeLoopback(t, local)
		listener, err := node.Listen(t.Context(), "tcp", "127.0.0.1:7998")
		must(t, err)
		control := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
		go func() { _ = control.Serve(listener) }() // Ends by Close.
		t.Cleanup(func() { _ = control.Close() })
		if _, err := looped.Get(within(t, time.Minute), "http://127.0.0.1:7998/"); err == nil || !strings.Contains(err.Error(), "404") {
			t.Fatalf("the pod doesn't reach the node's loopback, so that this shows nothing: %v", err)
		}
		for _, path := range []string{"/healthz", "/status"} {
			if body, err := looped.Get(within(t, 10*time.Second), url(netip.MustParseAddr("127.0.0.1"), programs.ProbePort, path)); err == nil {
				t.Errorf("%s is answered: %s", path, body)
			}
		}
	})

	t.Run("a flood of one port leaves the other one alone", func(t *testing.T) {
		// Fewer than the flood's connections.
		limitFiles(t, agent, 800)
		tieUp(t, &local.Host, netip.AddrPortFrom(internal, programs.StatusPort), 900)
		kubelet()
		must(t, agent.Healthy(within(t, time.Minute)))
		_, err := agent.Status(within(t, time.Minute))
		must(t, err)
	})

	t.Run("a flood of the probes by the host's own pods", func(t *testing.T) {
		limitFiles(t, agent, 4096)
		tieUp(t, &node.Host, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), programs.ProbePort), 1400)
		kubelet()
		_, err := local.Get(within(t, time.Minute), url(internal, programs.StatusPort, "/metrics"))
		must(t, err)
	})
	if err := p.WaitConnected(within(t, time.Minute)); err != nil || !agent.Process().Running() {
		t.Errorf("afterwards: running %t, %v", agent.Process().Running(), err)
	}
}

func url(address netip.Addr, port int, path string) string {
	return "http://" + netip.AddrPortFrom(address, uint16(port)).String() + path
}

// closedPort checks that nothing listens there.
func closedPort(t *testing.T, from interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}, address netip.Addr, port int) {
	t.Helper()
	conn, err := from.Dial(within(t, repair), "tcp", netip.AddrPortFrom(address, uint16(port)).String())
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s port %d: %v, want it to be refused", address, port, err)
	}
}

// routeLoopback makes a pod send packets for 127.0.0.1 to its node, whose kernel accepts
// them, as with kube-proxy.
func routeLoopback(t *testing.T, pod *testbed.Pod) *testbed.Pod {
	t.Helper()
	node := pod.Node
	other, err := node.AddPod(t.Context(), testbed.PodConfig{})
	must(t, err)
	for _, space := range []interface{ Do(func() error) error }{other.Space(), node.Space()} {
		must(t, space.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0)
		}))
	}
	t.Cleanup(func() {
		if err := node.Space().Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("0"), 0)
		}); err != nil {
			t.Error(err)
		}
	})
	gateway, own := node.PodCIDRs[0].Addr().Next().String(), other.Addresses[0].String()
	for _, command := range []string{
		"addr del 127.0.0.1/8 dev lo",
		"route add 127.0.0.1/32 via " + gateway + " dev eth0 src " + own,
	} {
		_, err := other.Run(t.Context(), "ip", strings.Fields(command)...)
		must(t, err)
	}
	return other
}

// limitFiles bounds how many files and connections an agent may have open.
func limitFiles(t *testing.T, agent *programs.Agent, most uint64) {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Prlimit(agent.Process().PID(), unix.RLIMIT_NOFILE, nil, &limit))
	// Only the host's root may raise Max again.
	limit.Cur = most
	must(t, unix.Prlimit(agent.Process().PID(), unix.RLIMIT_NOFILE, &limit, nil))
}

// tieUp holds connections open until the test ends, in all ways that cost a server
// resources: silent, with a request that doesn't end, with responses
// that aren't read. One that is closed is opened again.
func tieUp(t *testing.T, from *testbed.Host, to netip.AddrPort, connections int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, connections)
	opened := make(chan struct{}, connections)
	for n := range connections {
		go func() {
			defer func() { ended <- struct{}{} }()
			once := func() { opened <- struct{}{} }
			for ctx.Err() == nil {
				conn, err := from.Dial(ctx, "tcp", to.String())
				if err == nil {
					if once != nil {
						once()
						once = nil
					}
					hold(ctx, conn, n)
				}
				// Connections must be the scarce resource, not processors, which a
				// thousand clients on this machine share with the agent.
				select {
				case <-time.After(500 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		}()
	}
	t.Cleanup(func() {
		cancel()
		for range connections {
			<-ended
		}
	})
	// The kernel holds some of them back.
	for n := range connections / 2 {
		select {
		case <-opened:
		case <-time.After(time.Minute):
			t.Fatalf("only %d connections come about", n)
		}
	}
}

// hold keeps a connection until its other end closes it, or ctx ends.
func hold(ctx context.Context, conn net.Conn, n int) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	switch n % 3 {
	case 0:
		_, _ = io.Copy(io.Discard, conn)
	case 1:
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: a\r\n")
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
				if _, err := io.WriteString(conn, "X: y\r\n"); err != nil {
					return
				}
			}
		}
	case 2:
		for {
			if _, err := io.WriteString(conn, strings.Repeat("GET /status HTTP/1.1\r\nHost: a\r\n\r\n", 100)); err != nil {
				return
			}
		}
	}
}

// patiently retries as often as a kubelet before it acts on a failed probe.
func patiently(probe func(ctx context.Context) error) error {
	var errs []error
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := probe(ctx)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("three times in a row: %w", errors.Join(errs...))
}
