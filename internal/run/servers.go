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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxProbeText is how many characters of an error a probe shows.
const maxProbeText = 4000

// ServersConfig describes the Servers of a program. Health, Ready, Status and
// Guard may be nil; the other fields are required. The functions are called from
// any number of goroutines.
type ServersConfig struct {
	// ProbeAddress and ListenAddress are host:port, of two ports; the host may
	// be empty for all addresses.
	ProbeAddress, ListenAddress string
	// ProbeSocket is the path of a Unix socket, which serves what ProbeAddress does;
	// empty: there is none.
	ProbeSocket string
	// Gatherer serves /metrics. When one of its collectors fails, the
	// metrics of all others are served nevertheless.
	Gatherer prometheus.Gatherer
	// Health serves /healthz: nil while the process is worth keeping.
	Health func() error
	// Ready serves /readyz: nil while the process does its job.
	Ready func() error
	// Status serves /status: what it returns, as JSON.
	Status func() any
	// Guard stands before what is served at ListenAddress.
	Guard func(http.Handler) http.Handler
	// Logger gets failures to serve.
	Logger *slog.Logger
}

// Servers are what a program answers over plain HTTP, at addresses that share
// nothing but the answers, so that who ties up one of them doesn't touch the
// others:
//
//	            the kubelet, people on the host    Prometheus
//	address     ProbeAddress, ProbeSocket          ListenAddress
//	/healthz    everybody                          -
//	/readyz     everybody                          -
//	/status     the own host                       everybody, past the guard
//	/metrics    the own host                       everybody, past the guard
//
// Of several processes of one host each has a socket of its own, so that a probe there
// asks the one that is meant.
//
// The two checks answer 200 with "ok", or 503 with the text of their error. The
// other two are made for all who ask at the same time, see page.
type Servers struct {
	Probes, Status *Server
	Socket         *Server // nil: there is none
}

// NewServers prepares the servers; to run them is up to the caller.
func NewServers(cfg ServersConfig) Servers {
	metrics := &page{make: metricsHandler(cfg.Gatherer, cfg.Logger)}
	report := &page{make: status(cfg.Status, cfg.Logger)}
	guard := cfg.Guard
	if guard == nil {
		guard = func(next http.Handler) http.Handler { return next }
	}
	probes, open := http.NewServeMux(), http.NewServeMux()
	probes.Handle("GET /healthz", check(cfg.Health))
	probes.Handle("GET /readyz", check(cfg.Ready))
	probes.Handle("GET /metrics", ownHost(metrics))
	probes.Handle("GET /status", ownHost(report))
	open.Handle("GET /metrics", guard(metrics))
	open.Handle("GET /status", guard(report))
	servers := Servers{
		Probes: newServer(serverConfig{name: "probe", address: cfg.ProbeAddress, handler: probes, limit: maxProbeConnections, log: cfg.Logger}),
		Status: newServer(serverConfig{name: "status", address: cfg.ListenAddress, handler: open, limit: maxConnections, keepAlive: true, log: cfg.Logger}),
	}
	if cfg.ProbeSocket != "" {
		servers.Socket = newServer(serverConfig{name: "probe", address: unixPrefix + cfg.ProbeSocket, handler: probes, limit: maxProbeConnections, log: cfg.Logger})
	}
	return servers
}

// Failing returns why a server doesn't serve, by its name; nothing when all do.
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

// ownHost lets requests pass that come from the same host, or pod: those to the
// loopback, and those whose source is the address that they went to.
func ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connKey{}).(net.Conn)
		if !ok {
			http.NotFound(w, r)
			return
		}
		if remote := addressOf(conn.RemoteAddr()); !remote.IsLoopback() && remote != addressOf(conn.LocalAddr()) {
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
			http.Error(w, "encode status: "+printable.Error(err).Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// Nothing that is kept in memory fails.
		_, _ = w.Write(append(printable.JSON(body), '\n'))
	}
}

// scrapeLog logs what collectors complain about, once for as long as the complaint
// stays the same: a scrape comes every few seconds.
type scrapeLog struct{ complaints *errlog.Log }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	l.complaints.Note(context.Background(), errors.New(fmt.Sprint(v...)))
}
