package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// marker is in everything that is sent through the tunnel.
const marker = "this must not be readable in the underlay"

// stream is UDP through a tunnel, numbered.
type stream struct {
	sent    atomic.Uint64
	mu      sync.Mutex
	arrived []bool
	last    time.Time
	longest time.Duration // between two that arrived
}

// startStream sends so many packets a second until stop is called.
func startStream(t *testing.T, from, to *nstest.Namespace, dst string, perSecond int) (s *stream, stop func()) {
	t.Helper()
	s = new(stream)
	in, err := listen(to, dst)
	if err != nil {
		t.Fatal(err)
	}
	var out *net.UDPConn
	err = from.Do(func() (err error) {
		out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(dst)))
		if err != nil {
			return err
		}
		return nstest.ReportDrops(out)
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var sending, receiving sync.WaitGroup
	receiving.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := in.Read(buf)
			if err != nil {
				return
			}
			s.receive(buf[:n], time.Now())
		}
	})
	sending.Go(func() {
		packet := make([]byte, 200)
		copy(packet[8:], marker)
		began := time.Now()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			// Not more than a few at once, when this machine was busy.
			due := uint64(time.Since(began).Seconds() * float64(perSecond))
			for range min(due-s.sent.Load(), 50) {
				binary.BigEndian.PutUint64(packet, s.sent.Load())
				if _, err := out.Write(packet); err == nil {
					s.sent.Add(1)
				}
			}
		}
	})
	return s, sync.OnceFunc(func() {
		close(done)
		sending.Wait()
		waitForLate(s.lost)
		_ = in.Close()
		_ = out.Close()
		receiving.Wait()
	})
}

// waitForLate waits for sent packets that are missing, which are late on a busy machine, until
// none has arrived for five seconds.
func waitForLate(missing func() int) {
	for least, end := missing(), time.Now().Add(5*time.Second); least > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		if now := missing(); now < least {
			least, end = now, time.Now().Add(5*time.Second)
		}
	}
}

func listen(ns *nstest.Namespace, addr string) (c *net.UDPConn, err error) {
	err = ns.Do(func() error {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		if err != nil {
			return err
		}
		return holdSeconds(c)
	})
	return c, err
}

func (s *stream) receive(packet []byte, now time.Time) {
	number := binary.BigEndian.Uint64(packet)
	s.mu.Lock()
	defer s.mu.Unlock()
	for uint64(len(s.arrived)) <= number {
		s.arrived = append(s.arrived, false)
	}
	s.arrived[number] = true
	if !s.last.IsZero() {
		s.longest = max(s.longest, now.Sub(s.last))
	}
	s.last = now
}

func (s *stream) lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := int(s.sent.Load())
	for _, arrived := range s.arrived {
		if arrived {
			lost--
		}
	}
	return lost
}

// since returns the number of packets that were sent before.
func (s *stream) since() uint64 { return s.sent.Load() }

// passes waits until a packet arrives that is sent from now on.
func (s *stream) passes(t *testing.T, what string) {
	t.Helper()
	after := s.since()
	polltest.Until(t, time.Minute, what+": packets pass", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return uint64(len(s.arrived)) > after+1
	})
}

// takeLongest returns the longest time between two arrivals since the last call.
func (s *stream) takeLongest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := s.longest
	s.longest = 0
	return longest
}

// tcp is a TCP connection through a tunnel.
type tcp struct {
	bytes   atomic.Int64
	longest atomic.Int64 // nanoseconds between two reads
	ended   atomic.Pointer[error]
}

func startTCP(t *testing.T, from, to *nstest.Namespace, dst string) (s *tcp, stop func()) {
	t.Helper()
	s = new(tcp)
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", dst); return err }); err != nil {
		t.Fatal(err)
	}
	var out net.Conn
	if err := from.Do(func() (err error) { out, err = net.Dial("tcp", dst); return err }); err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		chunk := bytes.Repeat([]byte(marker), 200)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := out.Write(chunk); err != nil {
				s.ended.CompareAndSwap(nil, &err)
				return
			}
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	wg.Go(func() {
		buf := make([]byte, 1<<16)
		for last := time.Now(); ; {
			n, err := in.Read(buf)
			if err != nil {
				s.ended.CompareAndSwap(nil, &err)
				return
			}
			now := time.Now()
			s.bytes.Add(int64(n))
			s.longest.Store(max(s.longest.Load(), int64(now.Sub(last))))
			last = now
		}
	})
	return s, sync.OnceFunc(func() {
		if err := s.ended.Load(); err != nil {
			t.Errorf("the TCP connection has ended: %v", *err)
		}
		close(done)
		_ = out.Close()
		_ = in.Close()
		_ = l.Close()
		wg.Wait()
	})
}

// passes waits until more bytes arrive.
func (s *tcp) passes(t *testing.T, what string) {
	t.Helper()
	before := s.bytes.Load()
	polltest.Until(t, time.Minute, what+": the TCP connection goes on", func() bool { return s.bytes.Load() > before })
}

// capture inspects the frames of a link.
type capture struct {
	file *os.File
	wg   sync.WaitGroup

	mu        sync.Mutex
	seen      map[wireNonce]uint32
	plaintext int
	messages  int
}

// wireNonce is the key, by its receiver, and the nonce that a message was sealed with.
type wireNonce struct {
	to      [16]byte
	session uint32
	counter uint64
}

// startCapture captures a link.
func startCapture(t *testing.T, ns *nstest.Namespace, name string) *capture {
	t.Helper()
	c := &capture{seen: make(map[wireNonce]uint32)}
	err := ns.Do(func() error {
		l, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all := int(uint16(unix.ETH_P_ALL)>>8 | uint16(unix.ETH_P_ALL)<<8)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), "capture")
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20)
		// What the kernel cuts into datagrams only later comes with its size.
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: l.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	c.wg.Go(func() {
		frame := make([]byte, 1<<17)
		for {
			n, err := c.file.Read(frame)
			if err != nil {
				return
			}
			c.look(frame[:n])
		}
	})
	return c
}

const (
	vnetHeader  = 10
	gsoSizeAt   = 4
	ethHeader   = 14
	ipv4Header  = 20
	ipv6Header  = 40
	udpHeader   = 8
	protocolUDP = 17
)

// look inspects a frame, which follows a virtio header.
func (c *capture) look(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes.Contains(frame, []byte(marker)) {
		c.plaintext++
	}
	if len(frame) < vnetHeader+ethHeader {
		return
	}
	size := int(binary.LittleEndian.Uint16(frame[gsoSizeAt:]))
	packet := frame[vnetHeader+ethHeader:]
	var n wireNonce
	switch {
	case len(packet) > ipv4Header+udpHeader && packet[0] == 0x45 && packet[9] == protocolUDP:
		copy(n.to[:], packet[16:20])
		packet = packet[ipv4Header+udpHeader:]
	case len(packet) > ipv6Header+udpHeader && packet[0]>>4 == 6 && packet[6] == protocolUDP:
		copy(n.to[:], packet[24:40])
		packet = packet[ipv6Header+udpHeader:]
	default:
		return
	}
	if size == 0 {
		size = len(packet)
	}
	for len(packet) > 0 {
		message := packet[:min(size, len(packet))]
		packet = packet[len(message):]
		if len(message) >= device.MessageTransportSize && binary.LittleEndian.Uint32(message) == device.MessageTransportType {
			n.session, n.counter = binary.LittleEndian.Uint32(message[4:]), binary.LittleEndian.Uint64(message[8:])
			c.seen[n]++
			c.messages++
		}
	}
}

// stop ends the capture, and returns how many frames the kernel had no room for.
func (c *capture) stop(t *testing.T) (missed uint32) {
	t.Helper()
	raw, err := c.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var statsErr error
	err = raw.Control(func(fd uintptr) {
		var stats *unix.TpacketStats
		if stats, statsErr = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); statsErr == nil {
			missed = stats.Drops
		}
	})
	if err := errors.Join(err, statsErr, c.file.Close()); err != nil {
		t.Fatal(err)
	}
	c.wg.Wait()
	return missed
}

// check checks that no nonce came twice, and nothing readable.
func (c *capture) check(t *testing.T) {
	t.Helper()
	missed := c.stop(t)
	sessions := make(map[uint32]bool)
	for n, times := range c.seen {
		sessions[n.session] = true
		if times > 1 {
			t.Errorf("session %08x, counter %d was sent %d times", n.session, n.counter, times)
		}
	}
	if c.plaintext > 0 {
		t.Errorf("%d frames can be read", c.plaintext)
	}
	t.Logf("%d messages of %d sessions captured, %d frames missed", c.messages, len(sessions), missed)
	if c.messages == 0 {
		t.Error("nothing was captured")
	}
}

// remoteVariable is in the environment of a process that is a remote.
const remoteVariable = "ENGINE_TEST_REMOTE"

// serveRemote is a plain wireguard-go with a link of its own. It ends with its input.
func serveRemote() error {
	input := bufio.NewReader(os.Stdin)
	config, err := input.ReadString(0)
	if err != nil {
		return err
	}
	native, err := tun.CreateTUN(name, 1420)
	if err != nil {
		return err
	}
	d := device.NewDevice(native, conn.NewStdNetBind(), device.NewLogger(device.LogLevelError, ""))
	if err := d.IpcSet(strings.TrimSuffix(config, "\x00")); err != nil {
		return err
	}
	fmt.Println("here") // It goes up with its link.
	_, err = input.ReadByte()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// site is a node that this test's namespace is, with a link that engines serve, and its remote in
// another namespace.
type site struct {
	near, far *nstest.Namespace
	index     int    // of the link
	config    string // of the device
}

func prepareLink(name, addr string, queue int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	if queue > 0 {
		if err := netlink.LinkSetTxQLen(l, queue); err != nil {
			return err
		}
	}
	return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

// newSite returns a site. Its link is persistent, as the agent's, and no process has it open.
func newSite(t *testing.T) *site {
	t.Helper()
	nstest.TUN(t)
	s := &site{near: nstest.Current(t), far: nstest.New(t)}
	nstest.Pair(t, s.near, s.far, "under0", "under0")
	near, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	far, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	configuration := func(own, other wgtypes.Key, allowed, endpoint string) string {
		public := other.PublicKey()
		return fmt.Sprintf("private_key=%x\nlisten_port=51820\npublic_key=%x\nallowed_ip=%s\nendpoint=%s\n", own[:], public[:], allowed, endpoint)
	}
	s.config = configuration(near, far, "10.9.0.2/32", "192.0.2.2:51820") + "persistent_keepalive_interval=25\n"
	fd, err := openTUN(name)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1), prepareLink(name, "10.9.0.1/24", 2000), prepareLink("under0", "192.0.2.1/24", 0), unix.Close(fd))
	if err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	s.index = l.Attrs().Index
	t.Cleanup(func() {
		under, err := netlink.LinkByName("under0")
		if err := errors.Join(err, netlink.LinkDel(l), netlink.LinkDel(under)); err != nil {
			t.Error(err)
		}
	})
	remote := exec.Command("/proc/self/exe")
	remote.Env = append(os.Environ(), remoteVariable+"=1")
	remote.Stderr = os.Stderr
	in, err := remote.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := remote.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = s.far.Do(func() error { return errors.Join(prepareLink("under0", "192.0.2.2/24", 0), remote.Start()) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = remote.Wait()
	})
	if _, err := io.WriteString(in, configuration(far, near, "10.9.0.1/32", "192.0.2.1:51820")+"\x00"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "here\n" {
		t.Fatalf("the remote says %q, %v", line, err)
	}
	if err := s.far.Do(func() error { return prepareLink(name, "10.9.0.2/24", 2000) }); err != nil {
		t.Fatal(err)
	}
	return s
}

// ensure does what the agent does when the connection to the engine has ended: it makes an engine
// that has no devices serve the link.
func (s *site) ensure(t *testing.T) {
	t.Helper()
	try := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := control.Dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		list, err := c.Ask(ctx, control.Message{Op: control.List})
		if err != nil || len(list.Devices) > 0 {
			return err
		}
		fd, err := openTUN(name)
		if err != nil {
			return err
		}
		_, err = c.Ask(ctx, control.Message{Op: control.Serve, Name: name, Index: s.index}, fd)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
		device, err := net.Dial("unix", control.DevicePath(name))
		if err != nil {
			return err
		}
		defer func() { _ = device.Close() }()
		if _, err := io.WriteString(device, "set=1\n"+s.config+"\n"); err != nil {
			return err
		}
		if answer, err := bufio.NewReader(device).ReadString('\n'); err != nil || answer != "errno=0\n" {
			return fmt.Errorf("configure: %q, %w", answer, err)
		}
		_, err = c.Ask(ctx, control.Message{Op: control.Up, Name: name})
		return err
	}
	var last error
	polltest.Until(t, time.Minute, "an engine serves", func() bool {
		err := try()
		if err != nil && (last == nil || err.Error() != last.Error()) {
			t.Logf("the agent: %v", err)
		}
		last = err
		return err == nil
	})
}

// With -args -rate 10000 on a quiet machine the figures of docs/benchmarks.md.
var (
	fullRate = flag.Int("rate", 1000, "packets a second each way")
	upgrades = flag.Int("upgrades", 3, "upgrades in TestUpgradesUnderTraffic")
	storms   = flag.Int("storm", 12, "restarts in TestRestartsInAnyOrder")
)

// traffic is a TCP connection and packets in both directions, and a capture of the underlay.
type traffic struct {
	wire    *capture
	chat    *tcp
	out, in *stream
	end     func()
}

func (s *site) traffic(t *testing.T) *traffic {
	t.Helper()
	tr := &traffic{wire: startCapture(t, s.far, "under0")}
	var endTCP, endOut, endIn func()
	tr.chat, endTCP = startTCP(t, s.near, s.far, "10.9.0.2:7000")
	tr.out, endOut = startStream(t, s.near, s.far, "10.9.0.2:7001", *fullRate)
	tr.in, endIn = startStream(t, s.far, s.near, "10.9.0.1:7002", *fullRate)
	t.Cleanup(func() { endTCP(); endOut(); endIn() })
	tr.end = func() {
		endOut()
		endIn()
		endTCP()
		stalled := time.Duration(tr.chat.longest.Load())
		t.Logf("out: %d sent, %d lost", tr.out.sent.Load(), tr.out.lost())
		t.Logf("in: %d sent, %d lost", tr.in.sent.Load(), tr.in.lost())
		t.Logf("TCP: %d bytes, longest stall %v", tr.chat.bytes.Load(), stalled)
		tr.wire.check(t)
	}
	tr.passes(t, "at first")
	tr.out.takeLongest()
	tr.in.takeLongest()
	return tr
}

func (tr *traffic) passes(t *testing.T, what string) {
	t.Helper()
	tr.out.passes(t, what+", out")
	tr.in.passes(t, what+", in")
	tr.chat.passes(t, what)
}

// sleep waits for a duration that a test chooses at random, not for anything to happen.
func sleep(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// upgrade replaces the engine, which gets SIGTERM, by the next one, which waits.
func upgrade(t *testing.T, serving *running) (next *running) {
	t.Helper()
	next = start(t)
	next.says(t, "msg=\"another engine serves: waiting for its end\"")
	serving.says(t, "msg=\"another engine waits\"")
	signal(t, serving.Process.Pid, unix.SIGTERM)
	if err := <-serving.ended; err != nil {
		t.Errorf("the engine ends with %v", err)
	}
	next.says(t, "msg=starting")
	return next
}

// Upgrades end no TCP connection and use no nonce twice. Packets that the remote sends in the
// sessions of the old engine after that has stopped are lost.
func TestUpgradesUnderTraffic(t *testing.T) {
	s := newSite(t)
	serving := start(t)
	serving.says(t, "msg=starting")
	s.ensure(t)
	tr := s.traffic(t)
	for range *upgrades {
		serving = upgrade(t, serving)
		tr.passes(t, "after an upgrade")
		sleep(t, 100*time.Millisecond)
		t.Logf("longest gap out %v, in %v", tr.out.takeLongest(), tr.in.takeLongest())
	}
	tr.end()
}

// Engines are upgraded, and their processes are killed, in any order and at any time. No TCP
// connection ends, and no nonce is used twice.
func TestRestartsInAnyOrder(t *testing.T) {
	s := newSite(t)
	serving := start(t)
	serving.says(t, "msg=starting")
	s.ensure(t)
	tr := s.traffic(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	soon := func() time.Duration { return time.Duration(r.IntN(60)) * time.Millisecond }
	waits := func(next *running) {
		next.says(t, "msg=\"another engine serves: waiting for its end\"")
		serving.says(t, "msg=\"another engine waits\"")
	}
	for i := range *storms {
		what := [...]string{"an upgrade", "the server is killed", "the supervisor is killed", "the supervisor is killed, and another engine waits",
			"an upgrade, and the new engine is killed", "an upgrade, and the new engine's server is killed", "an upgrade, and the old engine is killed"}[r.IntN(7)]
		switch what {
		case "an upgrade":
			serving = upgrade(t, serving)
		case "the server is killed":
			signal(t, serving.server(t), unix.SIGKILL)
		case "the supervisor is killed":
			signal(t, serving.Process.Pid, unix.SIGKILL)
			t.Log(<-serving.ended)
			serving = start(t)
			serving.says(t, "msg=starting")
		default:
			next := start(t)
			waits(next)
			how := unix.SIGTERM
			if what == "the supervisor is killed, and another engine waits" {
				how = unix.SIGKILL
			}
			signal(t, serving.Process.Pid, how)
			switch what {
			case "an upgrade, and the new engine is killed":
				sleep(t, soon())
				signal(t, next.Process.Pid, unix.SIGKILL)
				t.Log(<-next.ended)
				next = start(t) // as the kubelet does
			case "an upgrade, and the new engine's server is killed":
				sleep(t, soon())
				signal(t, next.server(t), unix.SIGKILL)
			case "an upgrade, and the old engine is killed":
				sleep(t, soon())
				if err := serving.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
			}
			t.Log(<-serving.ended)
			next.says(t, "msg=starting")
			serving = next
		}
		s.ensure(t)
		tr.passes(t, what)
		t.Logf("%d: %s: longest gap out %v, in %v", i+1, what, tr.out.takeLongest(), tr.in.takeLongest())
	}
	tr.end()
}
