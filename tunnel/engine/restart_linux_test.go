package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// running is an engine process.
type running struct {
	*exec.Cmd
	ended chan error
	log   *logtest.Buffer
}

// start starts an engine, in a role if one is given.
func start(t *testing.T, role ...string) *running {
	t.Helper()
	nstest.TUN(t)
	r := &running{Cmd: enginetest.Command(role...), ended: make(chan error, 1), log: new(logtest.Buffer)}
	r.Stderr = r.log
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		r.ended <- r.Wait()
		close(gone)
	}()
	t.Cleanup(func() {
		_ = r.Process.Kill()
		<-gone // the next test has engines of its own
		if t.Failed() {
			t.Logf("log of process %d:\n%s", r.Process.Pid, r.log.Take())
		}
	})
	return r
}

// says waits until the engine logs what.
func (r *running) says(t *testing.T, what string) {
	t.Helper()
	var all strings.Builder
	polltest.Until(t, 3*time.Minute, fmt.Sprintf("process %d logs %q", r.Process.Pid, what), func() bool {
		all.WriteString(r.log.Take())
		return strings.Contains(all.String(), what)
	})
	t.Logf("process %d: %q", r.Process.Pid, what)
}

func ask(t *testing.T, m control.Message, files ...int) control.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := control.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer, err := c.Ask(ctx, m, files...)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

const name = "wg-test"

// openTUN returns a descriptor of a TUN link, which it creates unless it exists.
func openTUN(name string) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// makeTUN creates a TUN link, which is deleted when the descriptor is closed.
func makeTUN(t *testing.T) (fd, index int) {
	t.Helper()
	fd, err := openTUN(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{netlink.LinkSetTxQLen(l, 5000), netlink.AddrAdd(l, addr), netlink.LinkSetUp(l)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return fd, l.Attrs().Index
}

// configure sends a UAPI request to the device's socket.
func configure(t *testing.T, request string) (answer string) {
	t.Helper()
	c, err := net.Dial("unix", control.DevicePath(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for !strings.HasSuffix(answer, "\n\n") {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		answer += string(buf[:n])
	}
	return answer
}

// counted counts numbered packets that were sent and that arrived.
type counted struct {
	mu   sync.Mutex
	has  map[uint64]bool
	sent uint64
}

func (c *counted) next() (number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	return c.sent
}

func (c *counted) arrived(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has[number] = true
}

// missing returns how many of the packets first to last haven't arrived.
func (c *counted) missing(first, last uint64) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i <= last; i++ {
		if !c.has[i] {
			n++
		}
	}
	return n
}

func (c *counted) now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// tunnel is a device of the engine and a plain wireguard-go as its peer, with packets in
// both directions.
type tunnel struct {
	out, in *counted
}

func newTunnel(t *testing.T) *tunnel {
	t.Helper()
	fd, index := makeTUN(t)
	ask(t, control.Message{Op: control.Serve, Name: name, Index: index}, fd)
	near, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	far, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	nearPublic, farPublic := near.PublicKey(), far.PublicKey()
	link := tuntest.NewChannelTUN()
	remote := device.NewDevice(link.TUN(), conn.NewStdNetBind(), device.NewLogger(device.LogLevelError, ""))
	t.Cleanup(remote.Close)
	err = remote.IpcSet(fmt.Sprintf("private_key=%x\nlisten_port=51821\npublic_key=%x\nallowed_ip=10.9.0.1/32\n", far[:], nearPublic[:]))
	if err == nil {
		err = remote.Up()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer := configure(t, fmt.Sprintf("set=1\nprivate_key=%x\nlisten_port=51820\nfwmark=4211\npublic_key=%x\nallowed_ip=10.9.0.2/32\n"+
		"endpoint=127.0.0.1:51821\npersistent_keepalive_interval=25\n\n", near[:], farPublic[:]))
	if answer != "errno=0\n\n" {
		t.Fatalf("configure: %q", answer)
	}
	ask(t, control.Message{Op: control.Up, Name: name})

	tl := &tunnel{out: &counted{has: make(map[uint64]bool)}, in: &counted{has: make(map[uint64]bool)}}
	receive, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: 7000})
	if err != nil {
		t.Fatal(err)
	}
	if err := holdSeconds(receive); err != nil {
		t.Fatal(err)
	}
	send, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 7000})
	if err == nil {
		err = nstest.ReportDrops(send)
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	each := func(f func()) {
		wg.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					f()
				case <-done:
					return
				}
			}
		})
	}
	each(func() {
		if _, err := send.Write(binary.BigEndian.AppendUint64(nil, tl.out.now()+1)); err == nil {
			tl.out.next()
		}
	})
	each(func() {
		select {
		case link.Outbound <- fromRemote(tl.in.next()):
		case <-done:
		}
	})
	wg.Go(func() {
		for {
			select {
			case p := <-link.Inbound:
				if len(p) == 36 {
					tl.out.arrived(binary.BigEndian.Uint64(p[28:]))
				}
			case <-done:
				return
			}
		}
	})
	wg.Go(func() {
		for buf := make([]byte, 64); ; {
			n, err := receive.Read(buf)
			if err != nil {
				return
			}
			if n == 8 {
				tl.in.arrived(binary.BigEndian.Uint64(buf))
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		_ = receive.Close()
		_ = send.Close()
		go func() {
			for range link.Inbound {
				// So that the remote can end.
			}
		}()
		wg.Wait()
	})
	return tl
}

// holdSeconds enlarges a socket's receive buffer for the packets that arrive at once when an
// engine continues after a pause. The default is less than 300 packets.
func holdSeconds(socket *net.UDPConn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	})
	return errors.Join(controlErr, err)
}

// fromRemote returns a UDP packet of the remote, without checksum.
func fromRemote(number uint64) []byte {
	p := make([]byte, 36)
	p[0], p[3], p[8], p[9] = 0x45, 36, 64, 17
	copy(p[12:], []byte{10, 9, 0, 2, 10, 9, 0, 1})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(p[20:], 7000)
	binary.BigEndian.PutUint16(p[22:], 7000)
	binary.BigEndian.PutUint16(p[24:], 16)
	binary.BigEndian.PutUint64(p[28:], number)
	return p
}

// works waits until packets that are sent from now on arrive, in both directions.
func (tl *tunnel) works(t *testing.T) (out, in uint64) {
	t.Helper()
	for _, c := range []*counted{tl.out, tl.in} {
		first := c.now() + 1
		polltest.Until(t, time.Minute, "packets arrive", func() bool {
			now := c.now()
			return now > first && c.missing(first, now) < int(now-first)
		})
	}
	return tl.out.now(), tl.in.now()
}

// An engine that starts waits while another one serves. When that one gets SIGTERM, it continues
// the device, with its whole configuration.
func TestUpgrade(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	tl := newTunnel(t)
	for range 2 {
		tl.works(t)
		serving = upgrade(t, serving)
		tl.works(t)
		marked(t)
		if list := ask(t, control.Message{Op: control.List}).Devices; len(list) != 1 || list[0].Name != name {
			t.Errorf("the next engine serves %v", list)
		}
		polltest.Until(t, time.Minute, "the interval of keepalives to be restored", func() bool {
			return strings.Contains(configure(t, "get=1\n\n"), "persistent_keepalive_interval=25\n")
		})
		if answer := configure(t, "get=1\n\n"); !strings.Contains(answer, "listen_port=51820\n") {
			t.Errorf("the configuration has changed:\n%s", answer)
		}
	}
}

// marked checks that the device's sockets, those of the last engine, have its mark.
func marked(t *testing.T) {
	t.Helper()
	out, err := exec.Command("ss", "-Huane", "sport = :51820").CombinedOutput()
	sockets := strings.Count(string(out), ":51820 ")
	if err != nil || sockets == 0 || strings.Count(string(out), "fwmark:0x1073") != sockets {
		t.Errorf("sockets of the device: %v\n%swant all of them to have the mark 0x1073", err, out)
	}
}

// The engine that waits serves when the other one is killed.
func TestAWaitingEngineServes(t *testing.T) {
	first := start(t)
	first.says(t, "msg=starting")
	second := start(t)
	first.says(t, "msg=\"another engine waits\"")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second.says(t, "msg=starting")
	newTunnel(t).works(t)
}

// When the engine that serves is killed, one of those that wait serves, and the others wait for
// that one.
func TestSeveralWait(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	var waiting []*running
	for range 3 {
		next := start(t)
		next.says(t, "msg=\"another engine serves: waiting for its end\"")
		waiting = append(waiting, next)
	}
	if err := serving.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, time.Minute, "one serves, and two wait", func() bool {
		serve, wait := 0, 0
		for _, e := range waiting {
			serve += strings.Count(e.log.String(), "msg=starting")
			wait += strings.Count(e.log.String(), "msg=\"another engine waits\"")
		}
		return serve == 1 && wait == 2
	})
	newTunnel(t).works(t)
}

// dial connects to the engine as another engine does.
func dial(t *testing.T, notify func(control.Message)) *control.Client {
	t.Helper()
	c, err := control.Subscribe(t.Context(), notify)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// request sends a request of an engine that continues the device.
func request(t *testing.T, c *control.Client, op string) {
	t.Helper()
	_, files, err := c.AskFiles(t.Context(), control.Message{Op: op, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(files.Close)
}

// The other engine ends after each of its requests: this one continues to serve.
func TestAnUpgradeFails(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	tl := newTunnel(t)
	for _, ops := range [][]string{
		{control.Upgrade},
		{control.Upgrade, control.State},
		{control.Upgrade, control.State, control.Stop},
	} {
		tl.works(t)
		c := dial(t, func(control.Message) {})
		for _, op := range ops {
			request(t, c, op)
		}
		if answer := configure(t, "get=1\n\n"); !strings.Contains(answer, "listen_port=51820\n") {
			t.Errorf("after %v the device answers:\n%s", ops, answer)
		}
		// The engine that continues the device begins handshakes with all peers: the request
		// succeeds, so that the agent doesn't repeat it.
		ask(t, control.Message{Op: control.Handshake, Name: name, Keys: []string{strings.Repeat("0", 64)}})
		c.Close()
		serving.says(t, "msg=\"upgrade failed")
		tl.works(t)
		marked(t)
	}
}

// Only the engine that has begun an upgrade may continue it.
func TestUpgradesAreOneAtATime(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	newTunnel(t)
	one, other := dial(t, func(control.Message) {}), dial(t, func(control.Message) {})
	refused := func(c *control.Client, op string) {
		t.Helper()
		if _, err := c.Ask(t.Context(), control.Message{Op: op, Name: name}); err == nil {
			t.Errorf("%s succeeds", op)
		}
	}
	for _, op := range []string{control.State, control.Stop, control.Serving} {
		refused(one, op)
	}
	request(t, one, control.Upgrade)
	refused(one, control.Stop)
	for _, op := range []string{control.Upgrade, control.State, control.Stop, control.Serving, control.Remove, control.Up} {
		refused(other, op)
	}
	request(t, one, control.State)
	refused(one, control.State)
}

// An engine that gets SIGTERM ends after two attempts of the one that waits have failed.
func TestAnEngineEndsAfterFailedUpgrades(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	newTunnel(t).works(t)
	for attempt := range 2 {
		ending := make(chan struct{}, 1)
		c := dial(t, func(m control.Message) {
			if m.Op == control.Ending {
				ending <- struct{}{}
			}
		})
		request(t, c, control.Wait)
		if attempt == 0 {
			if err := serving.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		<-ending
		request(t, c, control.Upgrade)
		request(t, c, control.State)
		c.Close()
	}
	if err := <-serving.ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// An engine that gets SIGTERM doesn't wait for one that waited and has ended.
func TestAnEngineEndsWithoutTheOneThatWaited(t *testing.T) {
	nstest.Long(t)
	serving := start(t)
	serving.says(t, "msg=starting")
	ending := make(chan struct{})
	waiting := dial(t, func(m control.Message) {
		if m.Op == control.Ending {
			close(ending)
		}
	})
	request(t, waiting, control.Wait)
	if err := serving.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ending
	waiting.Close()
	if err := <-serving.ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// A temporary engine is continued by one that isn't.
func TestATemporaryEngineIsContinued(t *testing.T) {
	nstest.TUN(t)
	temporary := start(t, "temporary")
	temporary.says(t, "msg=starting")
	tl := newTunnel(t)
	tl.works(t)
	next := start(t)
	if err := <-temporary.ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
	next.says(t, "msg=starting")
	tl.works(t)
	if another := start(t, "temporary"); <-another.ended == nil {
		t.Error("a temporary engine runs beside another one")
	}
}

// An engine of an earlier release, which begins an upgrade when it starts, waits for the answer
// until this engine has ended.
func TestAnEarlierEngineWaits(t *testing.T) {
	serving := start(t)
	serving.says(t, "msg=starting")
	earlier, gone := dial(t, func(control.Message) {}), dial(t, func(control.Message) {})
	answered := make(chan error, 2)
	for _, c := range []*control.Client{earlier, gone} {
		go func() {
			_, err := c.Ask(t.Context(), control.Message{Op: "take"})
			answered <- err
		}()
	}
	newTunnel(t).works(t)
	gone.Close()
	if err := <-answered; err == nil {
		t.Error("a request without an engine succeeds")
	}
	select {
	case err := <-answered:
		t.Errorf("answered while this engine serves: %v", err)
	default:
	}
	if err := serving.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err == nil {
		t.Error("an earlier engine gets devices")
	}
}

// fake is an engine that serves, of which a test decides the answers.
func fake(t *testing.T, handle func(*control.Conn, control.Message) (control.Message, control.Files)) (end func()) {
	t.Helper()
	l, err := control.Listen(control.Path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	stop := make(chan struct{})
	serving.Go(func() {
		for {
			raw, err := l.AcceptUnix()
			if err != nil {
				return
			}
			var c *control.Conn
			c = control.NewConn(raw, func(m control.Message, files control.Files) (control.Message, control.Files) {
				files.Close()
				if m.Op == control.Hello {
					return control.Message{Protocol: control.Protocol}, nil
				}
				return handle(c, m)
			})
			c.Start()
			serving.Go(func() {
				select {
				case <-stop:
				case <-c.Done():
				}
				c.Close()
			})
		}
	})
	end = sync.OnceFunc(func() {
		_ = l.Close()
		close(stop)
		serving.Wait()
	})
	t.Cleanup(end)
	return end
}

// An engine of an earlier release knows no upgrade. The next one serves when it has ended.
func TestAnEarlierEngineEnds(t *testing.T) {
	nstest.TUN(t)
	end := fake(t, func(_ *control.Conn, m control.Message) (control.Message, control.Files) {
		return control.ErrorResponse(fmt.Errorf("unknown request %q", m.Op)), nil
	})
	next := start(t)
	next.says(t, "msg=\"another engine serves: waiting for its end\"")
	end()
	next.says(t, "msg=starting")
	newTunnel(t).works(t)
}

// deviceFiles returns the descriptors of a response to [control.State], and the port of the UDP
// socket among them.
func deviceFiles(t *testing.T, name string) (files control.Files, port int) {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	config, err := unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	port = socket.LocalAddr().(*net.UDPAddr).Port
	if _, err := unix.Pwrite(config, fmt.Appendf(nil, "private_key=%x\nlisten_port=%d\nerrno=0\n\n", key[:], port), 0); err != nil {
		t.Fatal(err)
	}
	file, err := socket.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	duplicate, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tun, err := openTUN(name)
	if err != nil {
		t.Fatal(err)
	}
	return control.Files{config, tun, duplicate}, port
}

// When one of several devices can't be continued, the engine releases its link and its port, so
// that the agent can make it serve the link.
func TestADeviceThatIsNotContinuedIsReleased(t *testing.T) {
	nstest.TUN(t)
	const other = "wg-fails"
	good, _ := deviceFiles(t, name)
	bad, port := deviceFiles(t, other)
	fake(t, func(c *control.Conn, m control.Message) (control.Message, control.Files) {
		switch {
		case m.Op == control.Wait:
			if err := c.Notify(control.Message{Op: control.Ending}); err != nil {
				t.Error(err)
			}
		case m.Op == control.Upgrade:
			return control.Message{Devices: []control.Device{{Name: name}, {Name: other}}}, nil
		case m.Op == control.State:
			return control.Message{Name: m.Name}, map[string]control.Files{name: good, other: bad}[m.Name]
		case m.Op == control.Stop && m.Name == other:
			return control.ErrorResponse(errors.New("for a test")), nil
		}
		return control.Message{}, nil
	})
	e := start(t)
	e.says(t, "msg=starting")
	if list := ask(t, control.Message{Op: control.List}).Devices; len(list) != 1 || list[0].Name != name {
		t.Errorf("the engine serves %v", list)
	}
	fd, err := openTUN(other)
	if err != nil {
		t.Fatalf("attach to the link: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	ask(t, control.Message{Op: control.Serve, Name: other}, fd)
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	_ = socket.Close()
}
