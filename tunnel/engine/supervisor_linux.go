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
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// Config is the configuration of an engine.
type Config struct {
	Build string // version of this program, reported to clients
	// Server is the command line of the serving process.
	Server []string
	// Temporary engines end when a client ends them, see [control.End], and never take
	// over the devices of another engine.
	Temporary bool
	Logger    *slog.Logger
}

const (
	maxClients = 256
	// requestTimeout bounds a request, with the time in which it waits for the next server.
	requestTimeout = 20 * time.Second
	// acceptPause is the pause after accept failed.
	acceptPause = 100 * time.Millisecond
)

// supervisor answers clients of the control socket, and runs the serving process. It handles no
// packets.
type supervisor struct {
	cfg       Config
	log       *slog.Logger
	wg        sync.WaitGroup
	end       func() // ends Run
	ctx       context.Context
	devices   *devices
	handovers *handovers

	mu       sync.Mutex
	listener *control.Listener // of the control socket; nil until Run has it
	clients  map[*control.Conn]bool
}

// newSupervisor returns a supervisor that runs until ctx ends.
func newSupervisor(ctx context.Context, cfg Config) *supervisor {
	ctx, end := context.WithCancel(ctx)
	sup := &supervisor{cfg: cfg, log: cfg.Logger, ctx: ctx, end: end, clients: make(map[*control.Conn]bool)}
	sup.devices = newDevices(ctx, cfg.Logger, &sup.wg, sup.notifyDied)
	sup.handovers = newHandovers(ctx, sup.devices, end)
	return sup
}

// run serves devices until ctx ends, a client ends the engine, or another engine has taken
// over all devices: then takenOver is true. It takes over the devices of an engine that
// runs already.
func run(ctx context.Context, cfg Config) (takenOver bool, err error) {
	sup := newSupervisor(context.WithoutCancel(ctx), cfg)
	defer sup.end()
	if removed, err := control.RemoveUnfinished(); len(removed) > 0 || err != nil {
		sup.log.Info("removed incomplete sockets of an earlier process", "files", removed, "err", err)
	}
	sup.wg.Go(sup.superviseServer)
	sup.wg.Go(func() { sup.devices.monitor(sup.ensureControlSocket) }) //nolint:contextcheck // It ends with the engine.
	listener, err := sup.takeOverOrListen(ctx)
	if err == nil {
		sup.log.Info("starting", "version", cfg.Build, "socket", control.Path)
		sup.serveClients(listener)
		select {
		case <-sup.ctx.Done():
		case <-ctx.Done():
			sup.handovers.await()
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
	return sup.handovers.isComplete(), err
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
	case control.BeginTakeover:
		if err := sup.handovers.begin(c); err != nil {
			return answer, nil, err
		}
		answer.Devices = sup.list()
		return answer, nil, nil
	case control.HandOver:
		return sup.handovers.handOver(c, sup.devices.find(m.Name))
	case control.TakenOver:
		return answer, nil, sup.handovers.confirm(c, m.Name)
	case control.Standby:
		sup.handovers.standBy(c)
		return answer, nil, nil
	}
	if err := sup.handovers.mayChange(); err != nil {
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
