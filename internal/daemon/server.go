package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of one connection to the Server. Scrapers and probes need a fraction;
// they keep anybody who can reach the port from tying up the process.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	headerBytes    = 16 << 10
	shutdownPeriod = 3 * time.Second
)

// ServerConfig describes a Server. Health, Ready and Status may be nil; the
// other fields are required. The functions are called at each request, from
// any number of goroutines.
type ServerConfig struct {
	// Address is host:port; the host may be empty for all addresses.
	Address string
	// Gatherer serves /metrics. When one of its collectors fails, the
	// metrics of all others are served nevertheless.
	Gatherer prometheus.Gatherer
	// Health serves /healthz: nil while the process is worth keeping.
	Health func() error
	// Ready serves /readyz: nil while the process does its job.
	Ready func() error
	// Status serves /status: what it returns, as JSON.
	Status func() any
	// Logger gets failures to serve.
	Logger *slog.Logger
}

// Server answers /metrics, /healthz, /readyz and /status over plain HTTP. The
// two checks answer 200 with "ok", or 503 with the text of their error.
type Server struct {
	listener net.Listener
	http     http.Server
}

// NewServer binds the address at once, so that a port that is taken is known
// before anything else has been set up; Run serves it.
func NewServer(cfg ServerConfig) (*Server, error) {
	listener, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for health and metrics: %w", cfg.Address, err)
	}
	return &Server{
		listener: listener,
		http: http.Server{
			Handler:           newHandler(cfg),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    headerBytes,
			ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
		},
	}, nil
}

// Addr returns the address that the server is bound to.
func (s *Server) Addr() netip.AddrPort {
	tcp, ok := s.listener.Addr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return tcp.AddrPort()
}

// String names the server as a task.
func (s *Server) String() string { return "http server " + s.listener.Addr().String() }

// Run serves until ctx ends, then gives requests under way a few seconds.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	// The parent is over; what it carries besides its end is kept.
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

func newHandler(cfg ServerConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog:      &scrapeLog{log: cfg.Logger},
		ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.Handle("GET /healthz", check(cfg.Health))
	mux.Handle("GET /readyz", check(cfg.Ready))
	mux.Handle("GET /status", status(cfg.Status, cfg.Logger))
	return mux
}

func check(probe func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		answer := "ok"
		if probe != nil {
			if err := probe(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				answer = err.Error()
			}
		}
		// A client that is gone needs no answer.
		_, _ = io.WriteString(w, answer+"\n")
	}
}

func status(report func() any, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var value any = struct{}{}
		if report != nil {
			value = report()
		}
		body, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			log.ErrorContext(r.Context(), "encode status", "err", err)
			http.Error(w, "encode status: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// A client that is gone needs no answer.
		_, _ = w.Write(append(body, '\n'))
	}
}

// scrapeLog passes on what collectors complain about, once for as long as the
// complaint stays the same: a scrape comes every few seconds.
type scrapeLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last string
}

// Println implements promhttp.Logger.
func (l *scrapeLog) Println(v ...any) {
	text := fmt.Sprint(v...)
	l.mu.Lock()
	repeated := text == l.last
	l.last = text
	l.mu.Unlock()
	if !repeated {
		l.log.Warn("collect metrics", "err", text)
	}
}
