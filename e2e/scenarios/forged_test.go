package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// TestForgedSources sends plaintext with a remote pod's source address from the underlay to a
// pod and to the host, on a node without reverse path filter.
func TestForgedSources(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, pod, remotePod := p.Agents[0], p.Pods[0], p.Pods[1]
	node := agent.Node
	// A machine on the underlay that no agent runs on.
	outsider, err := p.GCP.AddNode(t.Context(), testbed.NodeConfig{})
	must(t, err)
	shell := func(h interface {
		Run(context.Context, string, ...string) (string, error)
	}, script string) string {
		t.Helper()
		out, err := h.Run(t.Context(), "sh", "-ec", script)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return out
	}
	shell(node, "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")
	for i, claimed := range remotePod.Addresses {
		atOnce := ""
		if claimed.Is6() {
			atOnce = "nodad" // otherwise duplicate address detection delays it
		}
		shell(outsider, fmt.Sprintf("ip addr add %s/%d dev lo %s; ip route replace %s via %s",
			claimed, claimed.BitLen(), atOnce, node.PodCIDRs[i], node.Addresses()[i]))
	}
	var arrived atomic.Int64
	const port = 4242 // not 9, the port of agents' probes
	count(t, pod.Space(), port, &arrived)
	count(t, node.Space(), port, &arrived)
	sent := 0
	forge := func() {
		t.Helper()
		for i, claimed := range remotePod.Addresses {
			for _, to := range []netip.Addr{pod.Addresses[i], node.Addresses()[i]} {
				dialer := &net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(claimed, 0))}
				conn, err := outsider.Space().DialFrom(t.Context(), dialer, "udp", netip.AddrPortFrom(to, port).String())
				must(t, err)
				_, err = conn.Write([]byte("forged"))
				must(t, errors.Join(err, conn.Close()))
				sent++
			}
		}
	}
	// refused sends packets and waits until the agent has counted all of them, so that none
	// is in flight.
	refused := func(t *testing.T) {
		t.Helper()
		var before int
		eventually(t, repair, "the filter to be enforced", func(ctx context.Context) (err error) {
			before, err = forgedPackets(ctx, agent)
			return err
		})
		sent = 0
		forge()
		eventually(t, repair, "the packets to be counted", func(ctx context.Context) error {
			n, err := forgedPackets(ctx, agent)
			if err == nil && n != before+sent {
				err = fmt.Errorf("%d packets counted, want %d", n, before+sent)
			}
			return err
		})
		if got := arrived.Load(); got != 0 {
			t.Errorf("%d of %d forged packets arrived", got, sent)
		}
		must(t, p.WaitConnected(within(t, repair)))
		must(t, programs.WaitReach(within(t, repair), node, remotePod))
		must(t, programs.WaitReach(within(t, repair), p.Agents[1].Node, pod))
	}
	table := func(ctx context.Context) error {
		_, err := node.Run(ctx, "nft", "list", "table", "inet", routes.FilterTable)
		return err
	}

	t.Run("refused, and nothing else is", refused)

	t.Run("flushed and back", func(t *testing.T) {
		shell(node, "nft flush ruleset")
		eventually(t, repair, "the table", table)
		// The count before the flush is reported for another second.
		eventually(t, repair, "the count to begin again", func(ctx context.Context) error {
			n, err := forgedPackets(ctx, agent)
			if err == nil && n != 0 {
				err = fmt.Errorf("it is %d", n)
			}
			return err
		})
		refused(t)
	})

	t.Run("device deleted and back", func(t *testing.T) {
		must(t, node.DeleteLink("wireguard.gcp"))
		refused(t)
	})

	t.Run("without the agent", func(t *testing.T) {
		agent.Kill()
		counter := regexp.MustCompile(`counter packets (\d+)`) // as nft(8) shows one
		counted := func() (n int) {
			for _, m := range counter.FindAllStringSubmatch(shell(node, "nft list table inet "+routes.FilterTable), -1) {
				packets, err := strconv.Atoi(m[1])
				must(t, err)
				n += packets
			}
			return n
		}
		before := counted()
		sent = 0
		forge()
		eventually(t, repair, "the packets to be counted", func(context.Context) error {
			if n := counted(); n != before+sent {
				return fmt.Errorf("%d packets counted, want %d", n, before+sent)
			}
			return nil
		})
		if got := arrived.Load(); got != 0 {
			t.Errorf("%d of %d forged packets arrived", got, sent)
		}
		// Packets that would have arrived without the table.
		shell(node, "nft delete table inet "+routes.FilterTable)
		sent = 0
		forge()
		eventually(t, repair, "packets to arrive where nothing keeps them out", func(context.Context) error {
			if got := arrived.Load(); got != int64(sent) {
				return fmt.Errorf("%d of %d arrived", got, sent)
			}
			return nil
		})
		must(t, agent.Start())
		eventually(t, repair, "the table", table)
		arrived.Store(0)
		refused(t)
	})
}

// count counts the datagrams that come to a port of a pod or node.
func count(t *testing.T, space *sandbox.Space, port int, n *atomic.Int64) {
	t.Helper()
	var socket net.PacketConn
	must(t, space.Do(func() (err error) {
		socket, err = net.ListenPacket("udp", ":"+strconv.Itoa(port))
		if err == nil {
			err = socket.(*net.UDPConn).SetReadBuffer(1 << 20) // for pauses of this process
		}
		return err
	}))
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for buffer := make([]byte, 64); ; n.Add(1) {
			if _, _, err := socket.ReadFrom(buffer); err != nil {
				return
			}
		}
	}()
}

// forgedPackets returns the agent's count of packets that it has dropped.
func forgedPackets(ctx context.Context, a *programs.Agent) (n int, err error) {
	metrics, err := a.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	const name = `semaphore_wg_forged_packets_total{cluster="gcp",device="wireguard.gcp"} `
	_, value, found := strings.Cut(metrics, name)
	if !found {
		return 0, errors.New("the metrics have no count")
	}
	value, _, _ = strings.Cut(value, "\n")
	return strconv.Atoi(value)
}
