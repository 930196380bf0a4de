package run

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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxProbeText is the maximum length of an error in the response to a probe.
const maxProbeText = 4000

// ServersConfig describes the Servers of a program. Health, Ready, Status and Guard may be
// nil; the other fields are required. The functions must be safe for concurrent use.
type ServersConfig struct {
	// ProbeAddress and ListenAddress are host:port, with different ports; an empty host
	// means all addresses.
	ProbeAddress, ListenAddress string
	// ProbeSocket is the path of a Unix socket that serves the same as ProbeAddress; empty:
	// none.
	ProbeSocket string
	// Gatherer serves /metrics. If a collector fails, the metrics of all others are served.
	Gatherer prometheus.Gatherer
	// Health serves /healthz. After an error the kubelet restarts the container.
	Health func() error
	// Ready serves /readyz.
	Ready func() error
	// Status serves /status, as JSON.
	Status func() any
	// Guard wraps the handlers at ListenAddress.
	Guard func(http.Handler) http.Handler
	// Logger gets failures to serve.
	Logger *slog.Logger
}

// Servers are the HTTP servers of a program. They share nothing, so that a client that blocks
// one of them doesn't affect the others:
//
//	            kubelet, users on the host         Prometheus
//	address     ProbeAddress, ProbeSocket          ListenAddress
//	/healthz    all clients                        -
//	/readyz     all clients                        -
//	/status     same host                          all clients, with Guard
//	/metrics    same host                          all clients, with Guard
//
// Several processes of one host each have a socket of their own, so that a probe reaches the
// right one.
//
// The two checks respond 200 with "ok", or 503 with their error. The other responses are
// generated one at a time, see paced.
type Servers struct {
	Probes, Status *Server
	Socket         *Server // nil: none
}

// NewServers returns the servers; the caller runs them.
func NewServers(cfg ServersConfig) Servers {
	guard := cfg.Guard
	if guard == nil {
		guard = func(next http.Handler) http.Handler { return next }
	}
	metrics, report := metricsHandler(cfg.Gatherer, cfg.Logger), status(cfg.Status, cfg.Logger)
	server := func(name, address string, guard func(http.Handler) http.Handler, mux *http.ServeMux) *Server {
		mux.Handle("GET /metrics", guard(paced(metrics)))
		mux.Handle("GET /status", guard(paced(report)))
		return newServer(serverConfig{name: name, address: address, handler: mux, log: cfg.Logger})
	}
	probes := func(address string) *Server {
		mux := http.NewServeMux()
		mux.Handle("GET /healthz", check(cfg.Health))
		mux.Handle("GET /readyz", check(cfg.Ready))
		return server("probe", address, ownHost, mux)
	}
	servers := Servers{Probes: probes(cfg.ProbeAddress), Status: server("status", cfg.ListenAddress, guard, http.NewServeMux())}
	if cfg.ProbeSocket != "" {
		servers.Socket = probes(unixPrefix + cfg.ProbeSocket)
	}
	return servers
}

// Tasks returns the servers as tasks.
func (s Servers) Tasks() []Task {
	tasks := []Task{s.Probes, s.Status}
	if s.Socket != nil {
		tasks = append(tasks, s.Socket)
	}
	return tasks
}

// Failing returns the errors of servers that aren't serving, by name.
func (s Servers) Failing() map[string]string {
	failing := map[string]string{}
	for _, server := range []*Server{s.Probes, s.Status, s.Socket} {
		if server == nil {
			continue
		}
		if err := server.Err(); err != nil {
			failing[server.String()] = err.Error()
		}
	}
	return failing
}

// ownHost rejects requests from other hosts or pods. It accepts those from the loopback, and
// those whose source is also their destination address.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Those of a Unix socket are neither: both addresses are invalid.
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		source, _ := netip.ParseAddrPort(r.RemoteAddr)
		if remote := source.Addr().Unmap().WithZone(""); !remote.IsLoopback() && remote != addressOf(local) {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func metricsHandler(gatherer prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		ErrorLog:      scrapeLog{&errlog.Log{Logger: log, Level: slog.LevelWarn, Failing: "collect metrics"}},
		ErrorHandling: promhttp.ContinueOnError,
	})
}

func check(probe func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		answer := "ok"
		if probe != nil {
			if err := probe(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				answer = printable.Text(err.Error(), maxProbeText)
			}
		}
		// It fails if the client is gone.
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
			http.Error(w, "encode status: "+printable.Error(err).Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// The buffer of paced never fails.
		_, _ = w.Write(append(printable.JSON(body), '\n'))
	}
}

// scrapeLog logs the errors of collectors, without repetitions: scrapes are frequent.
type scrapeLog struct{ complaints *errlog.Log }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	l.complaints.Note(context.Background(), errors.New(fmt.Sprint(v...)))
}
