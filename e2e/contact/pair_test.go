// Package contact tests and measures how two agents establish their first WireGuard sessions. Each side
// is a process with a device, a controller of peers and its loops, in namespaces of its
// own. A relay between the sides can lose, delay and hold packets. There are no API
// servers: the test passes the nodes of each side to the other one.
package contact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const port = 51820

// Config describes a pair.
type Config struct {
	Dir      string // for keys
	Backends [2]string
	IPv6     bool // between the machines
}

// Pair is two sides and the relay between them.
type Pair struct {
	cfg    Config
	spaces [3]*sandbox.Space // those of the sides, and the relay's
	agents [2]*process
	relay  relay
	log    journal
	begin  time.Time // of the last trial
	stop   chan struct{}
}

// process is a side in its process.
type process struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	key tunnel.Key
	end io.Closer
}

// New starts two sides without each other's node.
func New(cfg Config) (*Pair, error) {
	p := &Pair{cfg: cfg, stop: make(chan struct{})}
	p.relay.log = &p.log
	go p.log.watch(p.stop)
	if err := p.create(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// underlay returns the address of a side, or of the relay on its link to that side.
func (p *Pair) underlay(side int, relay bool) netip.Addr {
	host := 1
	if relay {
		host = 2
	}
	if p.cfg.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:192:%d::%d", side, host))
	}
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", side*16+host))
}

// pod returns the address of a side's pod, subnet its prefix.
func pod(side int) netip.Addr      { return netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", side+1)) }
func subnet(side int) netip.Prefix { return netip.PrefixFrom(pod(side), 16).Masked() }

func (p *Pair) create() error {
	for i, name := range []string{"side 0", "side 1", "relay"} {
		var err error
		if p.spaces[i], err = sandbox.New(name); err != nil {
			return err
		}
	}
	for i := range p.agents {
		if err := p.link(i); err != nil {
			return fmt.Errorf("link side %d: %w", i, err)
		}
		err := p.spaces[2].Do(func() (err error) {
			p.relay.conns[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.underlay(i, true), port)))
			return err
		})
		if err != nil {
			return err
		}
		p.relay.sides[i] = netip.AddrPortFrom(p.underlay(i, false), port)
	}
	p.relay.start()
	for i := range p.agents {
		if err := p.startSide(i); err != nil {
			return fmt.Errorf("start side %d: %w", i, err)
		}
		if _, err := p.call(i, command{Call: "serve", From: pod(i)}); err != nil {
			return err
		}
		if err := p.Open(i); err != nil {
			return err
		}
	}
	return nil
}

// link joins a side and the relay.
func (p *Pair) link(side int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "underlay"
	toSide := fmt.Sprintf("side%d", side)
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: toSide, PeerNamespace: p.spaces[2].NsFd()}
	if err := p.spaces[side].Netlink.LinkAdd(veth); err != nil {
		return err
	}
	bits := 28
	if p.cfg.IPv6 {
		bits = 64
	}
	return errors.Join(
		setUp(p.spaces[side].Netlink, "underlay", netip.PrefixFrom(p.underlay(side, false), bits)),
		setUp(p.spaces[2].Netlink, toSide, netip.PrefixFrom(p.underlay(side, true), bits)),
		setUp(p.spaces[side].Netlink, "lo", netip.PrefixFrom(pod(side), 32)),
	)
}

func setUp(h *netlink.Handle, name string, address netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(address)}
	if address.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return errors.Join(h.AddrAdd(link, addr), h.LinkSetUp(link))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// startSide starts this program as a side. It ends with its standard input.
func (p *Pair) startSide(side int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), sideVariable+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.spaces[side].Do(cmd.Start); err != nil {
		return err
	}
	p.agents[side] = &process{cmd: cmd, in: json.NewEncoder(stdin), out: json.NewDecoder(stdout), end: stdin}
	return nil
}

// call sends a command to a side.
func (p *Pair) call(side int, c command) (answer, error) {
	var a answer
	agent := p.agents[side]
	if err := agent.in.Encode(c); err != nil {
		return a, fmt.Errorf("side %d: %s: %w", side, c.Call, err)
	}
	if err := agent.out.Decode(&a); err != nil {
		return a, fmt.Errorf("side %d: %s: %w", side, c.Call, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("side %d: %s: %s", side, c.Call, a.Error)
	}
	return a, nil
}

// Open starts the agent of a side, with the key that it has had.
func (p *Pair) Open(side int) error {
	dir := filepath.Join(p.cfg.Dir, fmt.Sprint(side))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	cfg := tunnel.Config{
		Name: tunnel.DeviceName("other"), Alias: tunnel.Alias("other"), KeyPath: dir,
		Backend: p.cfg.Backends[side], ListenPort: port, MTU: 1420,
	}
	a, err := p.call(side, command{Call: "open", Config: cfg})
	if err != nil {
		return err
	}
	p.agents[side].key = a.Key
	handle := p.spaces[side].Netlink
	link, err := handle.LinkByName(cfg.Name)
	if err != nil {
		return err
	}
	return handle.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: ipNet(subnet(1 - side)), Src: pod(side).AsSlice(), Scope: netlink.SCOPE_LINK,
	})
}

// Restart ends a side and starts it again with the same key: it has no peer, and
// has lost its sessions, as after a reboot of its machine.
func (p *Pair) Restart(side int) error {
	if _, err := p.call(side, command{Call: "remove"}); err != nil {
		return err
	}
	return p.Open(side)
}

// Meet passes the node of the other side to a side at the given time.
func (p *Pair) Meet(side int, at time.Time) error {
	other := 1 - side
	_, err := p.call(side, command{Call: "meet", At: at, Subnet: subnet(other), Remote: peers.Node{
		Name: "other", PublicKey: p.agents[other].key.String(), PodCIDRs: []string{subnet(other).String()},
		Endpoint: netip.AddrPortFrom(p.underlay(side, true), port).String(),
	}})
	return err
}

// Forget removes the other side from a side's peers.
func (p *Pair) Forget(side int) error {
	_, err := p.call(side, command{Call: "forget"})
	return err
}

// Relay sets the rule for packets; nil: all pass.
func (p *Pair) Relay(rule Rule) { p.relay.set(rule) }

// Inject delivers a packet to a side as if the other one had sent it.
func (p *Pair) Inject(to int, data []byte) { p.relay.send(to, data) }

// Look returns how a side sees the other one, and how often it initiated again
// since it was opened. There is no peer before Meet.
func (p *Pair) Look(side int) (peer tunnel.PeerStatus, exists bool, retries int, err error) {
	a, err := p.call(side, command{Call: "look"})
	return a.Peer, a.HasPeers, a.Retries, err
}

// Reach sends requests from one side's pod to the other's until one is answered,
// and returns when that one was sent.
func (p *Pair) Reach(from int, timeout time.Duration) (time.Time, error) {
	a, err := p.call(from, command{Call: "probe", From: pod(from), To: pod(1 - from), Timeout: timeout})
	return a.At, err
}

// Story returns the events since the last trial began, a line each, and clears them.
func (p *Pair) Story() (string, error) {
	events := p.log.take()
	for side := range p.agents {
		a, err := p.call(side, command{Call: "events"})
		if err != nil {
			return "", err
		}
		for _, e := range a.Events {
			e.Text = fmt.Sprintf("%d: %s", side, e.Text)
			events = append(events, e)
		}
	}
	return story(p.begin, events), nil
}

// Close ends both sides.
func (p *Pair) Close() error {
	close(p.stop)
	var errs []error
	for i, agent := range p.agents {
		if agent == nil {
			continue
		}
		_ = agent.end.Close()
		if err := agent.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("side %d: %w", i, err))
		}
	}
	p.relay.close()
	for _, s := range p.spaces {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}
