package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// Config is the configuration of an engine.
type Config struct {
	Build string // version of this program, reported to clients
	// Server is the command line of the serving process.
	Server []string
	// Temporary engines end when a client ends them, see [control.End], or when an engine
	// waits that isn't temporary. They never continue the devices of another engine.
	Temporary bool
	Logger    *slog.Logger
}

const (
	maxClients = 256
	// requestTimeout bounds a request, with the time in which it waits for the next server.
	requestTimeout = 20 * time.Second
	// acceptPause is the pause after accept failed.
	acceptPause = 100 * time.Millisecond
	// helloTimeout bounds an engine's answer to a hello; beyond it, the engine hangs.
	helloTimeout = 5 * time.Second
	// retryPause is the pause before a connection to the engine that serves is tried again.
	retryPause = 100 * time.Millisecond
)

// supervisor answers clients of the control socket, and runs the serving process. It handles no
// packets.
type supervisor struct {
	cfg      Config
	log      *slog.Logger
	wg       sync.WaitGroup
	end      func() // ends Run
	ctx      context.Context
	stop     chan struct{} // closed when a temporary engine isn't needed any more
	stopping sync.Once
	devices  *devices
	upgrades *upgrades
	replaced atomic.Bool // another engine has the control socket

	mu       sync.Mutex
	listener *control.Listener // of the control socket; nil until Run has it
	clients  map[*control.Conn]bool
}

// newSupervisor returns a supervisor that runs until ctx ends.
func newSupervisor(ctx context.Context, cfg Config) *supervisor {
	ctx, end := context.WithCancel(ctx)
	sup := &supervisor{cfg: cfg, log: cfg.Logger, ctx: ctx, end: end, stop: make(chan struct{}), clients: make(map[*control.Conn]bool)}
	sup.devices = newDevices(ctx, cfg.Logger, &sup.wg, sup.notifyDied)
	sup.upgrades = newUpgrades(sup.devices, end)
	return sup
}

// Run serves devices until ctx ends or a client ends the engine. It doesn't delete links,
// whose routes stay, too. While another engine serves, Run waits: it continues the devices of
// that one when that is asked to end, and serves without them when that was killed.
func Run(ctx context.Context, cfg Config) error {
	for {
		replaced, err := run(ctx, cfg)
		if err != nil || !replaced || cfg.Temporary {
			return err
		}
	}
}

// run serves devices until ctx ends, a client ends the engine, or another engine has replaced
// this one, because it didn't answer: then replaced is true. Before, it waits while another
// engine serves.
func run(ctx context.Context, cfg Config) (replaced bool, err error) {
	sup := newSupervisor(context.WithoutCancel(ctx), cfg)
	defer sup.end()
	if removed, err := control.RemoveUnfinished(); len(removed) > 0 || err != nil {
		sup.log.Info("removed incomplete sockets of an earlier process", "files", removed, "err", err)
	}
	sup.wg.Go(sup.superviseServer)
	sup.wg.Go(func() { sup.devices.monitor(sup.ensureControlSocket) }) //nolint:contextcheck // It ends with the engine.
	listener, err := sup.listen(ctx)
	if listener != nil {
		sup.log.Info("starting", "version", cfg.Build, "socket", control.Path)
		sup.serveClients(listener)
		select {
		case <-sup.ctx.Done():
		case <-sup.stop:
			sup.upgrades.passOn(sup.ctx) //nolint:contextcheck // ctx ends before this engine does.
		case <-ctx.Done():
			sup.upgrades.passOn(sup.ctx) //nolint:contextcheck // ctx has ended before this engine does.
		}
		sup.log.Info("ending")
	}
	sup.end()
	sup.devices.drop()
	sup.mu.Lock()
	if sup.listener != nil {
		err = errors.Join(err, sup.listener.Close())
	}
	for c := range sup.clients {
		c.Hangup()
	}
	sup.mu.Unlock()
	sup.wg.Wait()
	return sup.replaced.Load(), err
}

// listen waits until no other engine serves, continues the devices of one that ends, and
// returns the control socket; nil: ctx has ended.
func (sup *supervisor) listen(ctx context.Context) (*control.Listener, error) {
	for warned := ""; ctx.Err() == nil; {
		ending := make(chan struct{}, 1)
		limited, cancel := context.WithTimeout(ctx, helloTimeout)
		c, err := control.Subscribe(limited, func(m control.Message) {
			if m.Op == control.Ending {
				select {
				case ending <- struct{}{}:
				default:
				}
			}
		})
		cancel()
		switch {
		case err == nil && sup.cfg.Temporary:
			c.Close()
			return nil, fmt.Errorf("socket %s is %w", control.Path, control.ErrServed)
		case err == nil:
			listener, err := sup.wait(ctx, c, ending)
			c.Close()
			if listener != nil {
				return listener, nil
			}
			if err == nil {
				continue // That engine has ended.
			}
			sup.log.Warn("upgrade failed: the other engine goes on", "err", err)
		case control.Absent(err):
			listener, err := control.Listen(control.Path)
			if !errors.Is(err, control.ErrServed) {
				return listener, err
			}
		case ctx.Err() != nil:
		case timedOut(err):
			sup.log.Warn("the running engine doesn't answer: replacing it; links that it has open can't be served", "err", err)
			return control.Replace(control.Path)
		case err.Error() != warned: // It is ending, or speaks another version of the protocol.
			warned = err.Error()
			sup.log.Warn("connecting to the engine that serves failed: retrying", "err", err)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
	return nil, nil
}

// wait waits for the end of the engine that serves. If that one asks for it, wait continues its
// devices and returns the control socket.
func (sup *supervisor) wait(ctx context.Context, c *control.Client, ending <-chan struct{}) (*control.Listener, error) {
	// An engine of an earlier release refuses. It ends, and the agent configures this one.
	_, err := c.Ask(ctx, control.Message{Op: control.Wait})
	sup.log.Info("another engine serves: waiting for its end", "version", c.Build, "upgrade", err == nil)
	select {
	case <-ending:
		return sup.upgrade(ctx, c)
	case <-c.Done():
	case <-ctx.Done():
	}
	return nil, nil
}

// serveClients serves the control socket, instead of an earlier one, until the engine ends.
func (sup *supervisor) serveClients(listener *control.Listener) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.ctx.Err() != nil {
		_ = listener.Close()
		return
	}
	if sup.listener != nil {
		_ = sup.listener.Close()
	}
	sup.listener = listener
	sup.wg.Go(func() { accept(sup.ctx, listener, sup.client) })
}

// notifyDied notifies all clients that a device has ended by itself.
func (sup *supervisor) notifyDied(d *deviceState) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	for c := range sup.clients {
		sup.wg.Go(func() {
			if err := c.Notify(control.Message{Op: control.Died, Name: d.name, Index: d.index}); err != nil {
				c.Hangup()
			}
		})
	}
}

// accept calls serve with each connection until the listener is closed or ctx ends.
func accept(ctx context.Context, listener *control.Listener, serve func(*net.UnixConn)) {
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			serve(conn)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		// Other errors are temporary, for instance out of descriptors.
		select {
		case <-ctx.Done():
			return
		case <-time.After(acceptPause):
		}
	}
}

// client serves a connection to the control socket.
func (sup *supervisor) client(raw *net.UnixConn) {
	if err := checkCaller(raw); err != nil {
		sup.log.Warn("refused a client", "err", err)
		_ = raw.Close()
		return
	}
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if len(sup.clients) >= maxClients || sup.ctx.Err() != nil {
		sup.log.Warn("refused a client: too many of them", "clients", len(sup.clients))
		_ = raw.Close()
		return
	}
	var greeted sync.Once
	known := false
	var c *control.Conn
	c = control.NewConn(raw, func(m control.Message, files control.Files) (control.Message, control.Files) {
		defer func() { files.Close() }()
		greeted.Do(func() { known = m.Op == control.Hello && m.Protocol == control.Protocol })
		switch {
		case m.Op == control.Hello:
			return control.Message{Protocol: control.Protocol, Build: sup.cfg.Build, Handshakes: true}, nil
		case !known:
			defer c.Hangup()
			return control.ErrorResponse(errors.New("the first message isn't a hello of this protocol version")), nil
		}
		answer, answerFiles, err := sup.answer(c, m, &files)
		if err != nil {
			return control.ErrorResponse(err), nil
		}
		return answer, answerFiles
	})
	sup.clients[c] = true
	c.Start()
	sup.wg.Go(func() {
		<-c.Done()
		sup.mu.Lock()
		defer sup.mu.Unlock()
		delete(sup.clients, c)
	})
}

// checkCaller returns an error unless the peer process has this process's user. It backs up
// the socket's mode, which can be changed.
func checkCaller(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return fmt.Errorf("read the client's credentials: %w", err)
	}
	if int(cred.Uid) != unix.Geteuid() {
		return fmt.Errorf("process %d of user %d: %w", cred.Pid, cred.Uid, unix.EPERM)
	}
	return nil
}

// answer carries out a client's request. It removes the descriptors that it retains from
// files.
func (sup *supervisor) answer(c *control.Conn, m control.Message, files *control.Files) (answer control.Message, answerFiles control.Files, err error) {
	ctx, cancel := context.WithTimeout(sup.ctx, requestTimeout)
	defer cancel()
	switch m.Op {
	case control.List:
		answer.Devices = sup.list()
		return answer, nil, nil
	case control.End:
		answer.Changed = sup.cfg.Temporary && sup.devices.ifNone(sup.end)
		return answer, nil, nil
	case control.Wait:
		sup.upgrades.wait(c)
		if sup.cfg.Temporary {
			sup.stopping.Do(func() { close(sup.stop) })
		}
		return answer, nil, nil
	case control.Upgrade:
		if err := sup.upgrades.begin(c); err != nil {
			return answer, nil, err
		}
		answer.Devices = sup.list()
		return answer, nil, nil
	case control.State:
		return sup.upgrades.state(ctx, c, sup.devices.find(m.Name))
	case control.Stop:
		return answer, nil, sup.upgrades.stop(ctx, c, sup.devices.find(m.Name), *files)
	case control.Serving:
		return answer, nil, sup.upgrades.complete(c)
	case control.EarlierUpgrade:
		select {
		case <-sup.ctx.Done():
		case <-c.Ending():
		}
		return answer, nil, errUpgrading
	}
	if err := sup.upgrades.mayChange(); err != nil {
		if m.Op == control.Handshake {
			err = nil // The new engine begins handshakes with all peers.
		}
		return answer, nil, err
	}
	answer.Changed, err = sup.change(ctx, m, files)
	return answer, nil, err
}

// change carries out a request that changes a device.
func (sup *supervisor) change(ctx context.Context, m control.Message, files *control.Files) (changed bool, err error) {
	if m.Op == control.Serve {
		return false, sup.serve(ctx, m, files)
	}
	d := sup.devices.find(m.Name)
	switch {
	case m.Op == control.Remove && d == nil:
		return false, nil
	case m.Op == control.Remove:
		return true, d.remove(ctx)
	case m.Op == control.Up && d != nil:
		return d.up(ctx)
	case m.Op == control.Handshake && d != nil:
		return false, d.withServer(ctx, func(s *server) error {
			return s.ask(ctx, control.Message{Op: opHandshake, Name: d.name, Keys: m.Keys})
		})
	case m.Op == control.Up, m.Op == control.Handshake:
		return false, fmt.Errorf("device %q: %w", m.Name, unix.ENODEV)
	}
	return false, fmt.Errorf("unknown request %q", m.Op)
}

// list returns the devices in the order of their names.
func (sup *supervisor) list() (list []control.Device) {
	for _, d := range sup.devices.list() {
		list = append(list, control.Device{Name: d.name, Index: d.index})
	}
	slices.SortFunc(list, func(a, b control.Device) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// serve starts to serve a TUN link.
func (sup *supervisor) serve(ctx context.Context, m control.Message, files *control.Files) error {
	if len(*files) != 1 {
		return fmt.Errorf("serve %q: got %d descriptors, want one of a TUN", m.Name, len(*files))
	}
	if err := checkTUN((*files)[0], m.Name); err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	d := &deviceState{name: m.Name, index: m.Index, tun: (*files)[0]}
	if err := sup.devices.add(d); err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	*files = nil
	d.log.Info("serving", "index", d.index)
	err := d.listen(control.Listen)
	if err == nil {
		err = d.withServer(ctx, noChange)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("serve %q: %w", m.Name, err), d.remove(ctx))
	}
	return nil
}

// ensureControlSocket restores the control socket if it was removed. If another engine has
// replaced it, because this one didn't answer, this engine drops its devices and waits.
func (sup *supervisor) ensureControlSocket() {
	sup.mu.Lock()
	lost := sup.listener != nil && !sup.listener.InPlace()
	sup.mu.Unlock()
	if !lost || sup.upgrades.mayChange() != nil {
		return
	}
	fresh, err := control.Listen(control.Path)
	switch {
	case err == nil:
		sup.log.Warn("restored the control socket after it was removed")
		sup.serveClients(fresh)
	case errors.Is(err, control.ErrServed):
		sup.log.Warn("another engine has replaced the control socket: dropping all devices")
		sup.replaced.Store(true)
		sup.end()
	default:
		sup.log.Warn("restoring the control socket failed", "err", err)
	}
}
