package handover

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
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
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/link"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// role is in the environment of a process of this test program that is an engine.
const role = "HANDOVER_TEST_ROLE"

// TestMain serves an engine or a remote where the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "engine":
		exit(serveEngine())
	case "remote":
		exit(serveRemote())
	}
	os.Exit(nstest.Main(m))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(role)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Descriptors of an engine process. An end of a pair that comes through its control
// socket makes it give.
const (
	fdControl = 3
	fdTUN     = 4
	fdSockets = 5 // two of them
	fdPair    = 7 // to take; not there in the first
)

const (
	tunName = "wg-test"
	wgPort  = 51820
)

// serveEngine reads its configuration from its input, and says what it does.
func serveEngine() error {
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	take := os.Getenv("HANDOVER_TEST_TAKE") != ""
	steps, err := newSteps()
	if err != nil {
		return err
	}
	native, err := link.New(os.NewFile(fdTUN, "tun"), 1420)
	if err != nil {
		return err
	}
	limits := DefaultLimits
	limits.Drain = time.Second
	limits.Answer = time.Minute // this machine may be busy
	s := Side{Limits: limits, Log: discardLog, Tun: NewTun(&steppedTUN{native, steps}, take)}
	sockets := udp.New(udp.Config{Inherited: []*os.File{os.NewFile(fdSockets, "udp"), os.NewFile(fdSockets+1, "udp")}})
	s.Bind = NewBind(&steppedSockets{sockets, steps, take})
	s.Device = device.NewDevice(s.Tun, s.Bind, device.NewLogger(device.LogLevelError, ""))
	if err := s.Device.IpcSet(string(config)); err != nil {
		return err
	}
	if take {
		if s.Pair, err = Conn(os.NewFile(fdPair, "pair")); err != nil {
			return err
		}
		err = TakeOver(context.Background(), s, func() {
			steps.at(stepHere)
			fmt.Println("here")
		})
	} else if err = s.Device.Up(); err == nil {
		fmt.Println("here")
	}
	if err != nil {
		return err
	}
	end, err := receiveEnd()
	if err != nil {
		return err
	}
	if s.Pair, err = Conn(end); err != nil {
		return err
	}
	if err := HandOver(context.Background(), s, func() { steps.at(stepDrain) }); err != nil {
		return err
	}
	s.Device.Close()
	return nil
}

// receiveEnd waits for an end of a pair, and ends the process with its parent.
func receiveEnd() (*os.File, error) {
	control, err := net.FileConn(os.NewFile(fdControl, "control"))
	if err != nil {
		return nil, err
	}
	c, ok := control.(*net.UnixConn)
	if !ok {
		return nil, errors.New("control is no Unix socket")
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d control messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "pair"), nil
}

// slowVariable is in the environment of a remote whose answers to initiations take that
// long, and unsureVariable in that of one which answers only each third of them.
const (
	slowVariable   = "HANDOVER_TEST_SLOW"
	unsureVariable = "HANDOVER_TEST_UNSURE"
)

// weak is the network of a remote whose handshakes are slow, or lost.
type weak struct {
	conn.Bind
	slow    time.Duration
	unsure  bool
	answers atomic.Int64
}

func (w *weak) Send(packets [][]byte, to conn.Endpoint) error {
	if len(packets) == 1 && messageType(packets[0]) == device.MessageResponseType {
		if w.unsure && w.answers.Add(1)%3 != 0 {
			return nil
		}
		if w.slow > 0 {
			packet := append([]byte(nil), packets[0]...)
			time.AfterFunc(w.slow, func() { _ = w.Bind.Send([][]byte{packet}, to) })
			return nil
		}
	}
	return w.Bind.Send(packets, to)
}

// serveRemote is a plain wireguard-go.
func serveRemote() error {
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	native, err := tun.CreateTUN(tunName, 1420)
	if err != nil {
		return err
	}
	bind := &weak{Bind: conn.NewStdNetBind(), unsure: os.Getenv(unsureVariable) != ""}
	bind.slow, _ = time.ParseDuration(os.Getenv(slowVariable))
	d := device.NewDevice(native, bind, device.NewLogger(device.LogLevelError, ""))
	if err := d.IpcSet(string(config)); err != nil {
		return err
	}
	// It goes up with its link. One that is up before gets the event that its link is down,
	// and opens another socket while the one before may still be in use.
	fmt.Println("here")
	_, err = receiveEnd() // which is that of its parent
	return err
}

// process is one of either.
type process struct {
	*exec.Cmd
	control *os.File
	says    *bufio.Reader
	ended   chan error
}

// spawn starts a process in a namespace. Its files become its, after its control.
func spawn(t *testing.T, ns *nstest.Namespace, config string, env []string, files ...*os.File) *process {
	t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command("/proc/self/exe"), control: ours, ended: make(chan error, 1)}
	p.Env = append(os.Environ(), env...)
	p.ExtraFiles = append([]*os.File{theirs}, files...)
	p.Stdin, p.Stderr = strings.NewReader(config), os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(p.Start); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.ExtraFiles {
		_ = f.Close()
	}
	p.says = bufio.NewReader(out)
	go func() {
		_, err := p.Process.Wait()
		p.ended <- err
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = ours.Close()
		_ = out.Close()
	})
	return p
}

func (p *process) isHere(t *testing.T) {
	t.Helper()
	if line, err := p.says.ReadString('\n'); err != nil || line != "here\n" {
		t.Fatalf("a process says %q, %v", line, err)
	}
}

// give makes an engine give its device to the engine that has the other end.
func (p *process) give(t *testing.T, end *os.File) {
	t.Helper()
	raw, err := p.control.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		_ = withFD(end, func(given int) error {
			sendErr = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(given), nil, 0)
			return nil
		})
	})
	if err = errors.Join(err, sendErr, end.Close()); err != nil {
		t.Fatal(err)
	}
}

func withFD(f *os.File, use func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = use(int(fd)) })
	return errors.Join(controlErr, err)
}

func duplicate(t *testing.T, f *os.File) (dup *os.File) {
	t.Helper()
	err := withFD(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		dup = os.NewFile(uintptr(n), f.Name())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dup
}

// openTUN makes a TUN link in the calling thread's namespace.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// prepareLink gives a link an address and brings it up.
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

// site is a node with real links, and the remote that it has a tunnel to. Each is in a
// namespace of its own.
type site struct {
	near, far       *nstest.Namespace
	nearAddr, inner string // of the underlay; inside, near and far are .1 and .2
	tun             *os.File
	sockets         []*os.File
	config          string
	env             []string // more of what engines have
	engine          *process
}

// newSite makes one, with more in the environment of the remote.
func newSite(t *testing.T, underlay [2]string, remoteEnv ...string) *site {
	t.Helper()
	nstest.TUN(t)
	s := &site{near: nstest.New(t), far: nstest.New(t)}
	nstest.Pair(t, s.near, s.far, "under0", "under0")
	nearKey, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	farKey, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	configure := func(own, other wgtypes.Key, allowed, endpoint string) string {
		public := other.PublicKey()
		return fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nallowed_ip=%s\nendpoint=%s\n",
			hex.EncodeToString(own[:]), wgPort, hex.EncodeToString(public[:]), allowed, endpoint)
	}
	host := func(addr string) string {
		ip, _, _ := net.ParseCIDR(addr)
		return net.JoinHostPort(ip.String(), fmt.Sprint(wgPort))
	}
	s.config = configure(nearKey, farKey, "10.9.0.2/32", host(underlay[1]))
	err = s.near.Do(func() (err error) {
		if err := prepareLink("under0", underlay[0], 0); err != nil {
			return err
		}
		if s.tun, err = openTUN(tunName); err != nil {
			return err
		}
		if err := prepareLink(tunName, "10.9.0.1/24", 2000); err != nil {
			return err
		}
		b := udp.New(udp.Config{Opened: func(_ uint16, sockets []*os.File) { s.sockets = sockets }})
		if _, _, err = b.Open(wgPort); err != nil {
			return err
		}
		return b.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range append(s.sockets, s.tun) {
			_ = f.Close()
		}
	})
	if err := s.far.Do(func() error { return prepareLink("under0", underlay[1], 0) }); err != nil {
		t.Fatal(err)
	}
	remote := spawn(t, s.far, configure(farKey, nearKey, "10.9.0.1/32", host(underlay[0])), append(remoteEnv, role+"=remote"))
	remote.isHere(t)
	if err := s.far.Do(func() error { return prepareLink(tunName, "10.9.0.2/24", 2000) }); err != nil {
		t.Fatal(err)
	}
	s.engine = s.start(t)
	s.engine.isHere(t)
	return s
}

// start starts an engine; with an end of a pair, one that takes.
func (s *site) start(t *testing.T, pair ...*os.File) *process {
	t.Helper()
	env := append([]string{role + "=engine"}, s.env...)
	if len(pair) > 0 {
		env = append(env, "HANDOVER_TEST_TAKE=1")
	}
	files := []*os.File{duplicate(t, s.tun), duplicate(t, s.sockets[0]), duplicate(t, s.sockets[1])}
	return spawn(t, s.near, s.config, env, append(files, pair...)...)
}

// handOver hands over to a new process, and returns when the old one has ended.
func (s *site) handOver(t *testing.T) {
	t.Helper()
	oldEnd, newEnd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	fresh := s.start(t, newEnd)
	s.engine.give(t, oldEnd)
	fresh.isHere(t)
	if err := <-s.engine.ended; err != nil {
		t.Fatal(err)
	}
	s.engine = fresh
}
