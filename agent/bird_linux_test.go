package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// protocolBIRD is the mark of BIRD's routes (rtnetlink(7), RTPROT_BIRD).
const protocolBIRD = 12

// TestBesideBGP runs BIRD on three nodes, configured like Calico's: it learns routes from
// the kernel's main table, announces those in the pools to its neighbours, and installs
// theirs. Export of the remote's pool is not disabled, and one node announces the
// remote's subnet itself, as a whole and in part. Whatever BIRD installs in the main
// table, nothing leaves in plaintext, and BIRD's routes stay.
func TestBesideBGP(t *testing.T) {
	nstest.Root(t)
	program := birdBinary(t)
	s := newSite(t, "aws", "gcp")
	there := s.addNode(t, s.clusters["gcp"], config.BackendAuto)
	var nodes []*testNode
	for range 3 {
		nodes = append(nodes, s.addNode(t, s.clusters["aws"], config.BackendAuto))
	}
	for _, n := range append([]*testNode{there}, nodes...) {
		n.serveEcho(t)
		n.start(t)
	}
	allConnected := func() {
		t.Helper()
		for _, n := range nodes {
			connected(t, n, there)
		}
	}
	allConnected()
	wire := s.capture(t)
	for i, n := range nodes {
		n.startBIRD(t, program, nodes, there, i == 0)
	}
	birdsRoute := func(n *testNode) bool {
		var found []netlink.Route
		err := n.ns.Do(func() (err error) {
			dst, err := netlink.ParseIPNet(there.podCIDR.String())
			if err != nil {
				return err
			}
			found, err = netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: dst, Protocol: protocolBIRD},
				netlink.RT_FILTER_DST|netlink.RT_FILTER_PROTOCOL)
			return err
		})
		return err == nil && len(found) == 1
	}
	for _, n := range nodes[1:] {
		await(t, "BIRD to install its neighbour's route on "+n.name, func() bool { return birdsRoute(n) })
	}
	sealed := func(what string) {
		t.Helper()
		if plain := wire.plain.Load(); plain > 0 {
			t.Errorf("%s: %d packets are on the wire in plaintext", what, plain)
		}
	}
	here := nodes[1]
	send := func() {
		t.Helper()
		f := here.flowTo(t, there)
		await(t, "packets to be sent", func() bool { return f.sent.Load() > 100 })
		f.pause()
	}
	send()
	sealed("with BIRD's routes")
	allConnected()

	// The new process starts with BIRD's routes in the main table.
	here.stop(t)
	here.start(t)
	here.waitReady(t)
	allConnected()
	await(t, "the agent to be content", func() bool {
		rep := here.status()
		return rep != nil && len(rep.Of(statuspage.Failing)) == 0
	})
	sealed("after a restart")

	here.kill()
	check(t, here.ns.Do(func() error { return deleteLink(tunnel.DeviceName("gcp")) }))
	send()
	sealed("without agent and device")
	here.start(t)
	allConnected()
	sealed("at the end")
	for _, n := range nodes[1:] {
		if !birdsRoute(n) {
			t.Errorf("BIRD's route on %s has gone", n.name)
		}
	}

	// Proves that the capture sees plaintext.
	direct := startFlow(t, here.ns, netip.AddrPortFrom(here.podCIDR.Addr().Next(), 0), netip.MustParseAddrPort("10.99.0.1:9"), 1)
	await(t, "the capture to see plaintext", func() bool { return wire.plain.Load() > 0 })
	direct.pause()
}

// birdBinary returns the path of BIRD, which tools/deps unpacks.
func birdBinary(t *testing.T) string {
	t.Helper()
	if os.Getenv(kernelVariable) != "" {
		t.Skip("runs everywhere else: the emulated machine has no BIRD")
	}
	cache, err := os.UserCacheDir()
	check(t, err)
	program := filepath.Join(cache, "kube-semaphore", "bird", "usr", "sbin", "bird")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("BIRD isn't there: run tools/deps, as make does, or leave this out with -short (%v)", err)
	}
	return program
}

// startBIRD starts BIRD on a node, with sessions to the others. With announce it
// announces the remote's subnet, and the pods of the node there, as its own.
func (n *testNode) startBIRD(t *testing.T, program string, nodes []*testNode, there *testNode, announce bool) {
	t.Helper()
	var statics, sessions strings.Builder
	if announce {
		fmt.Fprintf(&statics, "route %s blackhole; route %s blackhole;", there.cluster.subnets[0], there.podCIDR)
	}
	for i, other := range nodes {
		if other != n {
			fmt.Fprintf(&sessions, `protocol bgp neighbour%d {
	local %s as 64512; neighbor %s as 64512;
	connect retry time 1; error wait time 1, 2; connect delay time 1;
	ipv4 { import all; export filter to_neighbours; next hop self; };
}
`, i, n.address, other.address)
		}
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "bird.conf")
	check(t, os.WriteFile(config, fmt.Appendf(nil, `router id %s;
filter to_neighbours {
	if proto = "announced" || proto = "own" || net ~ %s then accept;
	reject;
}
protocol device {}
protocol static own { ipv4; route %s blackhole; }
protocol static announced { ipv4; %s }
protocol kernel {
	learn; persist; scan time 1; metric 0;
	ipv4 { import all; export where source = RTS_BGP; };
}
%s`, n.address, there.cluster.subnets[0], n.podCIDR, statics.String(), sessions.String()), 0o600))
	cmd := exec.Command(program, "-f", "-c", config, "-s", filepath.Join(dir, "ctl"), "-P", filepath.Join(dir, "pid"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(filepath.Dir(program), "..", "lib", "x86_64-linux-gnu")}
	cmd.Stdout, cmd.Stderr = n.log, n.log
	check(t, n.ns.Do(cmd.Start))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
	})
}

// capture counts the packets between pods that cross the site's network outside of
// a tunnel.
type capture struct{ plain atomic.Int64 }

func (s *site) capture(t *testing.T) *capture {
	t.Helper()
	c := &capture{}
	var file *os.File
	check(t, s.lan.Do(func() error {
		protocol := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_IP)))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			file = os.NewFile(uintptr(fd), "capture")
		}
		return err
	}), file.SetDeadline(time.Time{}))
	var reading sync.WaitGroup
	reading.Go(func() {
		buffer := make([]byte, 2048)
		for {
			// A cooked packet socket's packets begin with the header of IP.
			size, err := file.Read(buffer)
			if err != nil {
				return
			}
			if size >= 20 && buffer[12] == 10 && buffer[16] == 10 {
				c.plain.Add(1)
			}
		}
	})
	t.Cleanup(func() {
		_ = file.Close()
		reading.Wait()
	})
	return c
}
