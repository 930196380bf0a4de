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

// Config is what a keeper is made of.
type Config struct {
	Build string // of this program, for whoever asks
	// Server is the command line of the serving process.
	Server []string
	// Temporary says that nobody but a client ends this engine.
	Temporary bool
	Logger    *slog.Logger
}

const (
	maxClients = 256
	maxDevices = 256
	// askLimit bounds how long the server may take for an answer, and how long a
	// request waits for another server.
	askLimit = 20 * time.Second
	// acceptPause is how long to wait after a connection couldn't be accepted.
	acceptPause = 100 * time.Millisecond
)

// keeper holds what must outlive the process that serves: descriptors and
// configurations. It handles no packets.
type keeper struct {
	cfg Config
	log *slog.Logger
	wg  sync.WaitGroup
	end func() // ends Run
	ctx context.Context

	mu       sync.Mutex
	listener *control.Listener // nil: not yet
	devices  map[string]*kept
	clients  map[*control.Conn]bool
	server   *server // nil: none runs
	handing
	changed chan struct{} // closed, and another one made, when one of these changes
}

// newKeeper returns one that runs until its ctx ends.
func newKeeper(ctx context.Context, cfg Config) *keeper {
	k := &keeper{
		cfg: cfg, log: cfg.Logger,
		devices: make(map[string]*kept), clients: make(map[*control.Conn]bool), changed: make(chan struct{}),
	}
	k.ctx, k.end = context.WithCancel(ctx)
	return k
}

// run serves devices until ctx ends, a client ends it, or another engine has taken all:
// then it returns true. The devices are those of another engine that answers, if one
// does.
func run(ctx context.Context, cfg Config) (taken bool, err error) {
	k := newKeeper(context.WithoutCancel(ctx), cfg)
	defer k.end()
	if removed, err := control.RemoveUnfinished(); len(removed) > 0 || err != nil {
		k.log.Info("removed what an earlier process left unfinished", "files", removed, "err", err)
	}
	k.wg.Go(k.nurse)
	k.wg.Go(k.watch)
	listener, err := k.begin(ctx)
	if err == nil { // Otherwise this one ends, with that error.
		k.log.Info("starting", "version", cfg.Build, "socket", control.Path)
		k.mu.Lock()
		k.listener = listener
		k.mu.Unlock()
		k.wg.Go(func() { k.accept(listener, k.client) })
		select {
		case <-k.ctx.Done():
		case <-ctx.Done():
			k.leave()
		}
		k.log.Info("ending")
	}
	k.end()
	k.mu.Lock()
	if k.listener != nil {
		err = errors.Join(err, k.listener.Close())
	}
	taken = k.taken
	for _, d := range k.devices {
		k.forget(d)
	}
	for c := range k.clients {
		c.Hangup()
	}
	k.mu.Unlock()
	k.wg.Wait()
	return taken, err
}

// notify wakes whoever waits for a change. The caller holds k.mu.
func (k *keeper) notify() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// accept has each connection served, until the listener is closed.
func (k *keeper) accept(listener *control.Listener, serve func(*net.UnixConn)) {
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			serve(conn)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		// Others pass: out of descriptors, for instance.
		select {
		case <-k.ctx.Done():
			return
		case <-time.After(acceptPause):
		}
	}
}

// client serves a connection to the control socket.
func (k *keeper) client(raw *net.UnixConn) {
	if err := checkCaller(raw); err != nil {
		k.log.Warn("refused a client", "err", err)
		_ = raw.Close()
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.clients) >= maxClients || k.ctx.Err() != nil {
		k.log.Warn("refused a client: too many of them", "clients", len(k.clients))
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
			return control.Message{Protocol: control.Protocol, Build: k.cfg.Build, Handshakes: true}, nil
		case !known:
			defer c.Hangup()
			return control.Failure(errors.New("the first message is no hello of this protocol")), nil
		}
		answer, given, err := k.hand(c, m)
		if errors.Is(err, errOther) {
			answer, err = k.answer(m, &files)
		}
		if err != nil {
			return control.Failure(err), nil
		}
		return answer, given
	})
	k.clients[c] = true
	c.Start()
	k.wg.Go(func() {
		<-c.Done()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.clients, c)
	})
}

// checkCaller refuses other users than this process's own. The socket's mode does,
// too, until somebody changes it.
func checkCaller(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return fmt.Errorf("find out who connects: %w", err)
	}
	if int(cred.Uid) != unix.Geteuid() {
		return fmt.Errorf("process %d of user %d may not", cred.Pid, cred.Uid)
	}
	return nil
}

// answer does what a client asks for. Descriptors that are kept are taken out of
// files.
func (k *keeper) answer(m control.Message, files *control.Files) (control.Message, error) {
	ctx, cancel := context.WithTimeout(k.ctx, askLimit)
	defer cancel()
	switch m.Op {
	case control.List:
		k.mu.Lock()
		defer k.mu.Unlock()
		var list []control.Device
		for _, d := range k.devices {
			list = append(list, control.Device{Name: d.name, Index: d.index})
		}
		slices.SortFunc(list, func(a, b control.Device) int { return strings.Compare(a.Name, b.Name) })
		return control.Message{Devices: list}, nil
	case control.Serve:
		if err := k.mayChange(); err != nil {
			return control.Message{}, err
		}
		return control.Message{}, k.serve(ctx, m, files)
	case control.End:
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.cfg.Temporary && len(k.devices) == 0 {
			defer k.end()
			return control.Message{Changed: true}, nil
		}
		return control.Message{}, nil
	}
	if err := k.mayChange(); err != nil {
		if m.Op == control.Handshake {
			err = nil // Whoever takes the devices makes handshakes with all.
		}
		return control.Message{}, err
	}
	d := k.device(m.Name)
	switch {
	case m.Op == control.Remove && d == nil:
		return control.Message{}, nil
	case m.Op == control.Remove:
		return control.Message{Changed: true}, k.remove(ctx, d)
	case m.Op == control.Up && d != nil:
		changed, err := k.up(ctx, d)
		return control.Message{Changed: changed}, err
	case m.Op == control.Handshake && d != nil:
		return control.Message{}, k.withServer(ctx, d, func(s *server) error { return s.handshake(ctx, d, m.Keys) })
	case m.Op == control.Up, m.Op == control.Handshake:
		return control.Message{}, fmt.Errorf("device %q: %w", m.Name, unix.ENODEV)
	}
	return control.Message{}, fmt.Errorf("request %q isn't known", m.Op)
}

func (k *keeper) device(name string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.devices[name]
}

// list returns the devices as they are now.
func (k *keeper) list() []*kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.devices))
}
