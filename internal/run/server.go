package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// Bounds of a Server, against clients that try to block the process. Scrapers and probes need
// a fraction.
const (
	// maxConnections is the number of connections that are served at once, with one request
	// each. Others wait in the kernel's queue.
	maxConnections = 16
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	headerBytes    = 16 << 10
	shutdownPeriod = 3 * time.Second
)

// Bounds of the wait before binding an address again. In a rollout, the new process binds it
// within a second after the old one has ended.
const (
	firstRetry   = 200 * time.Millisecond
	longestRetry = 800 * time.Millisecond
)

// unixPrefix precedes the path of a Unix socket in addresses.
const unixPrefix = "unix:"

// Server serves HTTP at one address. If the address is in use or doesn't exist yet, it
// retries, independently of other tasks.
type Server struct {
	name    string
	address string
	http    http.Server
	log     *slog.Logger
	retry   wait.Backoff
	// outcomes are those of binding and of serving.
	outcomes *errlog.Log

	mu    sync.Mutex
	bound netip.AddrPort
	err   error
}

// serverConfig describes a Server.
type serverConfig struct {
	name    string
	address string // host:port, where the host may be empty for all addresses; or unix:path
	handler http.Handler
	log     *slog.Logger
}

func newServer(cfg serverConfig) *Server {
	s := &Server{
		name: cfg.name, address: cfg.address, log: cfg.log,
		http: http.Server{
			Handler:           cfg.handler,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			MaxHeaderBytes:    headerBytes,
			ErrorLog:          slog.NewLogLogger(cfg.log.Handler(), slog.LevelWarn),
			ConnState:         closeForeign,
		},
		retry:    reconcile.Backoff(firstRetry, longestRetry),
		outcomes: &errlog.Log{Logger: cfg.log, Level: slog.LevelWarn, Failing: "not listening, retrying"},
		err:      errors.New("not started"),
	}
	s.http.SetKeepAlivesEnabled(false)
	return s
}

// String names the server as a task.
func (s *Server) String() string { return s.name + " server " + s.address }

// Addr returns the bound address, or the zero value.
func (s *Server) Addr() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound
}

// Err returns the error of a server that isn't serving; nil while it serves.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Run serves until ctx ends, then waits shutdownPeriod for running requests.
func (s *Server) Run(ctx context.Context) error {
	for {
		served, err := s.listen(ctx)
		if err == nil {
			select {
			case err = <-served:
				err = fmt.Errorf("serve on %s: %w", s.address, err)
			case <-ctx.Done():
				return s.shutDown(ctx, served)
			}
		}
		s.note(ctx, nil, err)
		select {
		case <-time.After(s.retry.Step()):
		case <-ctx.Done():
			return nil
		}
	}
}

// listen binds the address and starts to serve. The channel returns the error that ends it.
func (s *Server) listen(ctx context.Context) (<-chan error, error) {
	listener, err := listen(ctx, s.address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.address, err)
	}
	s.note(ctx, listener.Addr(), nil)
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(netutil.LimitListener(listener, maxConnections)) }()
	return served, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return listenUnix(ctx, path)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// listenUnix listens on a Unix socket of mode 0600. It replaces a stale socket.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: another process is listening", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// note records whether the server is serving, and logs changes.
func (s *Server) note(ctx context.Context, address net.Addr, err error) {
	var bound netip.AddrPort
	if tcp, ok := address.(*net.TCPAddr); ok {
		bound = tcp.AddrPort()
	}
	s.mu.Lock()
	s.bound, s.err = bound, err
	s.mu.Unlock()
	s.outcomes.Note(ctx, err, "server", s.name)
	if err == nil {
		s.retry = reconcile.Backoff(firstRetry, longestRetry)
		s.log.Info("listening", "server", s.name, "address", address.String())
	}
}

func (s *Server) shutDown(ctx context.Context, served <-chan error) error {
	// The parent has ended; its values are kept.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPeriod)
	defer cancel()
	err := s.http.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}

// closeForeign closes connections from other machines to the loopback, which the kernel
// delivers if net.ipv4.conf.all.route_localnet is set, as kube-proxy does.
func closeForeign(conn net.Conn, state http.ConnState) {
	if state == http.StateNew && addressOf(conn.LocalAddr()).IsLoopback() && !addressOf(conn.RemoteAddr()).IsLoopback() {
		_ = conn.Close() // nothing was written
	}
}

// addressOf returns the address of one end of a TCP connection.
func addressOf(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
