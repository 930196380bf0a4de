package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	maxDevices = 256
	// requestTimeout bounds a request, with the time in which it waits for the next server.
	requestTimeout = 20 * time.Second
	// acceptPause is the pause after accept failed.
	acceptPause = 100 * time.Millisecond
)

// supervisor owns the descriptors and configurations that must survive the serving
// process. It handles no packets.
type supervisor struct {
	cfg Config
	log *slog.Logger
	wg  sync.WaitGroup
	end func() // ends Run
	ctx context.Context

	mu       sync.Mutex
	listener *control.Listener // of the control socket; nil until Run has it
	devices  map[string]*deviceState
	clients  map[*control.Conn]bool
	server   *server // nil: none runs
	takeovers
	changed chan struct{} // closed and replaced when devices, server or takeovers change
}

// newSupervisor returns a supervisor that runs until ctx ends.
func newSupervisor(ctx context.Context, cfg Config) *supervisor {
	sup := &supervisor{
		cfg: cfg, log: cfg.Logger,
		devices: make(map[string]*deviceState), clients: make(map[*control.Conn]bool), changed: make(chan struct{}),
	}
	sup.ctx, sup.end = context.WithCancel(ctx)
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
	sup.wg.Go(sup.monitor)
	listener, err := sup.takeOverOrListen(ctx)
	if err == nil {
		sup.log.Info("starting", "version", cfg.Build, "socket", control.Path)
		sup.mu.Lock()
		sup.listener = listener
		sup.mu.Unlock()
		sup.wg.Go(func() { sup.accept(listener, sup.client) })
		select {
		case <-sup.ctx.Done():
		case <-ctx.Done():
			sup.awaitTakeover()
		}
		sup.log.Info("ending")
	}
	sup.end()
	sup.mu.Lock()
	if sup.listener != nil {
		err = errors.Join(err, sup.listener.Close())
	}
	takenOver = sup.takenOver
	for _, d := range sup.devices {
		sup.dropDevice(d)
	}
	for c := range sup.clients {
		c.Hangup()
	}
	sup.mu.Unlock()
	sup.wg.Wait()
	return takenOver, err
}

// notify wakes the goroutines that wait for a change. The caller has locked sup.mu.
func (sup *supervisor) notify() {
	close(sup.changed)
	sup.changed = make(chan struct{})
}

// accept calls serve with each connection until the listener is closed.
func (sup *supervisor) accept(listener *control.Listener, serve func(*net.UnixConn)) {
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
		case <-sup.ctx.Done():
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
		answer, answerFiles, err := sup.handleTakeover(c, m)
		if errors.Is(err, errNotTakeover) {
			answer, err = sup.answer(m, &files)
		}
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
func (sup *supervisor) answer(m control.Message, files *control.Files) (control.Message, error) {
	ctx, cancel := context.WithTimeout(sup.ctx, requestTimeout)
	defer cancel()
	switch m.Op {
	case control.List:
		sup.mu.Lock()
		defer sup.mu.Unlock()
		var list []control.Device
		for _, d := range sup.devices {
			list = append(list, control.Device{Name: d.name, Index: d.index})
		}
		slices.SortFunc(list, func(a, b control.Device) int { return strings.Compare(a.Name, b.Name) })
		return control.Message{Devices: list}, nil
	case control.Serve:
		if err := sup.mayChange(); err != nil {
			return control.Message{}, err
		}
		return control.Message{}, sup.serve(ctx, m, files)
	case control.End:
		sup.mu.Lock()
		defer sup.mu.Unlock()
		if sup.cfg.Temporary && len(sup.devices) == 0 {
			defer sup.end()
			return control.Message{Changed: true}, nil
		}
		return control.Message{}, nil
	}
	if err := sup.mayChange(); err != nil {
		if m.Op == control.Handshake {
			err = nil // The engine that takes over begins handshakes with all peers.
		}
		return control.Message{}, err
	}
	d := sup.device(m.Name)
	switch {
	case m.Op == control.Remove && d == nil:
		return control.Message{}, nil
	case m.Op == control.Remove:
		return control.Message{Changed: true}, sup.remove(ctx, d)
	case m.Op == control.Up && d != nil:
		changed, err := sup.up(ctx, d)
		return control.Message{Changed: changed}, err
	case m.Op == control.Handshake && d != nil:
		return control.Message{}, sup.withServer(ctx, d, func(s *server) error { return s.handshake(ctx, d, m.Keys) })
	case m.Op == control.Up, m.Op == control.Handshake:
		return control.Message{}, fmt.Errorf("device %q: %w", m.Name, unix.ENODEV)
	}
	return control.Message{}, fmt.Errorf("unknown request %q", m.Op)
}

func (sup *supervisor) device(name string) *deviceState {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	return sup.devices[name]
}

// list returns a snapshot of the devices.
func (sup *supervisor) list() []*deviceState {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	return slices.Collect(maps.Values(sup.devices))
}
