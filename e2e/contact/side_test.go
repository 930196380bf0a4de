package contact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// sideVariable makes this program a side if set.
const sideVariable = "SEMAPHORE_CONTACT_SIDE"

// echoPort is the port of each side's echo server, on its pod's address.
const echoPort = 7

// probeSpacing is the interval of repeated requests: a lost request must not count as a
// missing session.
const probeSpacing = 10 * time.Millisecond

// command is a command to a side, which answers when it is done.
type command struct {
	Call    string
	Config  tunnel.Config
	Remote  peers.Node    // meet: the other side
	Subnet  netip.Prefix  // meet: where its pods are
	At      time.Time     // meet: when it is learnt of
	From    netip.Addr    // probe, serve
	To      netip.Addr    // probe
	Timeout time.Duration // probe
}

// answer is the result of a command.
type answer struct {
	Error    string
	Key      tunnel.Key
	At       time.Time // probe: when the first request was answered
	Retries  int       // how often this side initiated again
	Peer     tunnel.PeerStatus
	HasPeers bool
	Events   []event // events: what this side did
}

// RunAsSide runs a side and exits, if the process was started as one.
func RunAsSide() {
	enginetest.Main()
	if os.Getenv(sideVariable) == "" {
		return
	}
	if err := runSide(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "side:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runSide(stdin io.Reader, stdout io.Writer) error {
	// UAPI sockets of its own.
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		os.MkdirAll("/var/run", 0o755),
		unix.Mount("tmpfs", "/var/run", "tmpfs", 0, "mode=0755"),
	)
	if err != nil {
		return err
	}
	// It ends with this process.
	if _, err := enginetest.Start(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))); err != nil {
		return err
	}
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var s side
	defer func() { s.stop() }()
	for {
		var c command
		if err := in.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a, err := s.do(c)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// side is an agent's state for one remote, with a list of nodes instead of the remote's API
// server.
type side struct {
	device     *tunnel.Device
	controller *peers.Controller
	nodes      atomic.Pointer[[]*peers.Node]
	subnet     atomic.Pointer[netip.Prefix]
	peering    *reconcile.Trigger
	retries    atomic.Int64
	log        journal
	halt       func()
}

// Snapshot implements peers.Source.
func (s *side) Snapshot() ([]*peers.Node, bool) { return *s.nodes.Load(), true }

// Decided implements peers.Source.
func (s *side) Decided(time.Time, bool) time.Time { return time.Time{} }

func (s *side) do(c command) (a answer, err error) {
	switch c.Call {
	case "open":
		a.Key, err = s.open(c.Config)
	case "stop":
		s.stop()
	case "remove":
		s.end()
		err = s.device.Remove(context.Background())
	case "meet":
		s.subnet.Store(&c.Subnet)
		s.nodes.Store(&[]*peers.Node{&c.Remote})
		time.Sleep(time.Until(c.At))
		s.peering.Fire()
	case "forget":
		s.nodes.Store(&[]*peers.Node{})
		s.peering.Fire()
	case "serve":
		err = serve(c.From)
	case "probe":
		a.At, err = probe(c.From, c.To, c.Timeout)
	case "events":
		a.Events = s.log.take()
	case "look":
		a.Retries = int(s.retries.Load())
		a.Peer, a.HasPeers, err = s.look()
	default:
		err = fmt.Errorf("no call %q", c.Call)
	}
	return a, err
}

// open is the start of an agent, as far as one remote goes.
func (s *side) open(cfg tunnel.Config) (tunnel.Key, error) {
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	device := tunnel.Open(cfg)
	if _, err := device.Ensure(context.Background()); err != nil {
		return tunnel.Key{}, errors.Join(err, device.Close())
	}
	contacting := reconcile.NewTrigger()
	s.device, s.peering = device, reconcile.NewTrigger()
	s.nodes.Store(&[]*peers.Node{})
	s.retries.Store(0)
	s.controller = peers.NewController(peers.ControllerConfig{
		Cluster: "other", Device: counted{device, &s.retries, &s.log},
		Source: s,
		Rules: func() peers.Rules {
			var rules peers.Rules
			if subnet := s.subnet.Load(); subnet != nil {
				rules.Subnets = []netip.Prefix{*subnet}
			}
			return rules
		},
		Wake:   contacting.Fire,
		Store:  peers.NewStore(cfg.KeyPath, cfg.Name, "other"),
		Logger: cfg.Logger,
	})
	// The loops of the agent.
	loops := []*reconcile.Loop{
		reconcile.NewLoop(reconcile.Config{
			Name: "peers", Reconcile: s.controller.Reconcile, Trigger: s.peering, MinInterval: 20 * time.Millisecond, Logger: cfg.Logger,
		}),
		reconcile.NewLoop(reconcile.Config{
			Name: "sessions", Reconcile: s.controller.Tend, Trigger: contacting, Due: s.controller.TendDue, Logger: cfg.Logger,
		}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, l := range loops {
		running.Go(func() { _ = l.Run(ctx) }) // It has no error.
	}
	s.halt = func() {
		cancel()
		running.Wait()
	}
	return device.PublicKey(), nil
}

// end stops the loops.
func (s *side) end() {
	if s.halt != nil {
		s.halt()
		s.halt = nil
	}
}

// stop is the end of an agent: its network stays.
func (s *side) stop() {
	s.end()
	if s.device != nil {
		_ = s.device.Close() // It has no error.
	}
}

// look returns the state of the only peer.
func (s *side) look() (tunnel.PeerStatus, bool, error) {
	status, err := s.device.Status(context.Background())
	if err != nil || len(status.Peers) == 0 {
		return tunnel.PeerStatus{}, false, err
	}
	return status.Peers[0], true, nil
}

// counted counts repeated initiations, and records what is done.
type counted struct {
	*tunnel.Device
	retries *atomic.Int64
	log     *journal
}

// Configure implements peers.Device.
func (c counted) Configure(ctx context.Context, want []tunnel.Peer) (tunnel.Changes, error) {
	done, err := c.Device.Configure(ctx, want)
	c.log.note("configured with %d peers", len(want))
	return done, err
}

// Nudge implements peers.Device.
func (c counted) Nudge(ctx context.Context, decide func(tunnel.PeerStatus) tunnel.Nudge) (tunnel.Nudges, error) {
	c.log.note("looks")
	done, err := c.Device.Nudge(ctx, func(p tunnel.PeerStatus) tunnel.Nudge {
		does := decide(p)
		c.log.note("has sent %d, got %d, session %v: %v", p.TxBytes, p.RxBytes, !p.LastHandshake.IsZero(), does)
		return does
	})
	c.log.note("has looked")
	c.retries.Add(int64(done.Resets))
	return done, err
}

// serve echoes packets to an address until the process ends.
func serve(from netip.Addr) error {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, echoPort)))
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64)
		for {
			n, to, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], to) // The next one may come through.
		}
	}()
	return nil
}

// probe sends requests until one is answered, and returns when that was sent: the round-trip
// time isn't part of the result.
func probe(from, to netip.Addr, timeout time.Duration) (time.Time, error) {
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
	if err != nil {
		return time.Time{}, err
	}
	defer conn.Close()
	buf := make([]byte, 64)
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		_, err := conn.Write([]byte(strconv.FormatInt(time.Now().UnixNano(), 10)))
		if err := conn.SetReadDeadline(time.Now().Add(probeSpacing)); err != nil {
			return time.Time{}, err
		}
		var n int
		if err == nil {
			n, err = conn.Read(buf)
		}
		if err == nil {
			nanos, err := strconv.ParseInt(strings.TrimSpace(string(buf[:n])), 10, 64)
			return time.Unix(0, nanos), err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(probeSpacing) // No route yet, or refused by the other end.
		}
	}
	return time.Time{}, fmt.Errorf("no answer within %v", timeout)
}
