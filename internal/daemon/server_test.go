package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// serve runs a server on a free port of the loopback and returns its URL.
func serve(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	cfg.Address = "127.0.0.1:0"
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	server, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return "http://" + server.Addr().String()
}

func get(t *testing.T, url string) (code int, body string, header http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content), response.Header
}

func TestChecksFollowTheirFunctions(t *testing.T) {
	var failing atomic.Bool
	probe := func() error {
		if failing.Load() {
			return errors.New("gcp: device is gone")
		}
		return nil
	}
	url := serve(t, ServerConfig{Health: probe, Ready: probe})
	for _, path := range []string{"/healthz", "/readyz"} {
		failing.Store(false)
		if code, body, _ := get(t, url+path); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s = %d %q, want 200 ok", path, code, body)
		}
		failing.Store(true)
		if code, body, _ := get(t, url+path); code != http.StatusServiceUnavailable || body != "gcp: device is gone\n" {
			t.Errorf("%s = %d %q, want 503 and the reason", path, code, body)
		}
	}
}

func TestStatusIsIndentedJSON(t *testing.T) {
	url := serve(t, ServerConfig{Status: func() any {
		return map[string]any{"remotes": []string{"gcp"}}
	}})
	code, body, header := get(t, url+"/status")
	want := "{\n  \"remotes\": [\n    \"gcp\"\n  ]\n}\n"
	if diff := cmp.Diff(want, body); code != http.StatusOK || diff != "" {
		t.Errorf("status %d (-want +got):\n%s", code, diff)
	}
	if got := header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q", got)
	}
}

func TestStatusThatCannotBeEncoded(t *testing.T) {
	url := serve(t, ServerConfig{Status: func() any { return func() {} }})
	if code, body, _ := get(t, url+"/status"); code != http.StatusInternalServerError || !strings.Contains(body, "encode status") {
		t.Errorf("/status = %d %q, want 500 and the reason", code, body)
	}
}

func TestOnlyReadingIsAllowed(t *testing.T) {
	url := serve(t, ServerConfig{})
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/status"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s = %d, want 405", path, response.StatusCode)
		}
	}
}

// failingCollector stands for one device of several that can't be read.
type failingCollector struct{ desc *prometheus.Desc }

func (c failingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c failingCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(c.desc, errors.New("device wireguard.aws is missing"))
}

func TestFailingCollectorLeavesTheOtherMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	good := prometheus.NewGauge(prometheus.GaugeOpts{Name: "good", Help: "Always there."})
	good.Set(42)
	registry.MustRegister(good, failingCollector{prometheus.NewDesc("bad", "Never there.", nil, nil)})
	var logged bytes.Buffer
	url := serve(t, ServerConfig{Gatherer: registry, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	for range 3 {
		code, body, _ := get(t, url+"/metrics")
		if code != http.StatusOK || !strings.Contains(body, "good 42\n") {
			t.Fatalf("/metrics = %d %q, want 200 with the good metric", code, body)
		}
	}
	if got := strings.Count(logged.String(), "wireguard.aws is missing"); got != 1 {
		t.Errorf("complaint logged %d times in three scrapes, want once:\n%s", got, &logged)
	}
}

func TestTakenPortIsReportedAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	_, err = NewServer(ServerConfig{Address: address, Gatherer: prometheus.NewRegistry(), Logger: quiet()})
	if err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("NewServer() = %v, want an error that names %s", err, address)
	}
}

func TestServerIsATask(t *testing.T) {
	server, err := NewServer(ServerConfig{Address: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Task(server).String(), "http server "+server.Addr().String(); got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, quiet(), time.Minute, server); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if _, err := net.Dial("tcp", server.Addr().String()); err == nil {
		t.Error("the port is open after the end")
	}
}
