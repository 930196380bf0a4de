package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// serve runs servers on free ports of the loopback and returns their URLs.
func serve(t *testing.T, cfg ServersConfig) (probes, status string) {
	t.Helper()
	cfg.ProbeAddress, cfg.ListenAddress = "127.0.0.1:0", "127.0.0.1:0"
	servers := start(t, cfg)
	return "http://" + servers.Probes.Addr().String(), "http://" + servers.Status.Addr().String()
}

// start runs servers and waits for them to listen.
func start(t *testing.T, cfg ServersConfig) Servers {
	t.Helper()
	servers := NewServers(complete(cfg))
	run(t, servers.Tasks()...)
	polltest.Until(t, time.Minute, "servers to listen", func() bool { return len(servers.Failing()) == 0 })
	return servers
}

func complete(cfg ServersConfig) ServersConfig {
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	return cfg
}

// run runs servers until the test ends.
func run(t *testing.T, servers ...Task) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(servers))
	for _, server := range servers {
		go func() { done <- server.Run(ctx) }()
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		for range servers {
			if err := <-done; err != nil {
				t.Errorf("Run() = %v", err)
			}
		}
	})
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
	url, _ := serve(t, ServersConfig{Health: probe, Ready: probe})
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
	probes, status := serve(t, ServersConfig{Status: func() any {
		return map[string]any{"remotes": []string{"gcp"}}
	}})
	for _, url := range []string{probes, status} {
		code, body, header := get(t, url+"/status")
		want := "{\n  \"remotes\": [\n    \"gcp\"\n  ]\n}\n"
		if diff := cmp.Diff(want, body); code != http.StatusOK || diff != "" {
			t.Errorf("status %d (-want +got):\n%s", code, diff)
		}
		if got := header.Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type = %q", got)
		}
	}
}

func TestStatusThatCannotBeEncoded(t *testing.T) {
	_, url := serve(t, ServersConfig{Status: func() any { return func() {} }})
	if code, body, _ := get(t, url+"/status"); code != http.StatusInternalServerError || !strings.Contains(body, "encode status") {
		t.Errorf("/status = %d %q, want 500 and the reason", code, body)
	}
}

func TestOnlyReadingIsAllowed(t *testing.T) {
	probes, status := serve(t, ServersConfig{})
	for _, path := range []string{status + "/metrics", status + "/status", probes + "/healthz", probes + "/readyz", probes + "/status"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("x"))
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
	handler := metricsHandler(registry, slog.New(slog.NewTextHandler(&logged, nil)))
	for range 3 {
		code, body := ask(handler, "/metrics")
		if code != http.StatusOK || !strings.Contains(body, "good 42\n") {
			t.Fatalf("/metrics = %d %q, want 200 with the good metric", code, body)
		}
	}
	if got := strings.Count(logged.String(), "wireguard.aws is missing"); got != 1 {
		t.Errorf("complaint logged %d times in three scrapes, want once:\n%s", got, &logged)
	}
}

// ask asks a handler.
func ask(handler http.Handler, path string) (code int, body string) {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return recorder.Code, recorder.Body.String()
}

func TestEachServerHasItsPaths(t *testing.T) {
	probes, status := serve(t, ServersConfig{})
	for url, want := range map[string]int{
		probes + "/healthz": 200, probes + "/readyz": 200, probes + "/metrics": 200, probes + "/status": 200, probes + "/": 404,
		status + "/healthz": 404, status + "/readyz": 404, status + "/metrics": 200, status + "/status": 200, status + "/": 404,
	} {
		if code, _, _ := get(t, url); code != want {
			t.Errorf("%s: %d, want %d", url, code, want)
		}
	}
}

func TestGuardStandsBeforeMetricsAndStatusOnly(t *testing.T) {
	probes, status := serve(t, ServersConfig{Guard: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	}})
	for url, want := range map[string]int{
		probes + "/healthz": 200, probes + "/metrics": 200, probes + "/status": 200, status + "/metrics": 401, status + "/status": 401,
	} {
		if code, _, _ := get(t, url); code != want {
			t.Errorf("%s: %d, want %d", url, code, want)
		}
	}
}

// TestTakenPortIsTriedAgain occupies one of the two ports, or uses an address that
// doesn't exist on this host.
func TestTakenPortIsTriedAgain(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for name, address := range map[string]string{"taken": taken.Addr().String(), "not there": "192.0.2.1:7773"} {
		t.Run(name, func(t *testing.T) {
			var logged logtest.Buffer
			servers := NewServers(complete(ServersConfig{
				ProbeAddress: "127.0.0.1:0", ListenAddress: address, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
			}))
			servers.Status.retry = reconcile.Backoff(time.Millisecond, time.Millisecond)
			run(t, servers.Probes, servers.Status)
			polltest.Until(t, time.Minute, "a warning", func() bool {
				failing := servers.Failing()
				return len(failing) == 1 && strings.Contains(failing["status server "+address], "listen on "+address) &&
					strings.Contains(logged.String(), "retrying")
			})
			if code, _, _ := get(t, "http://"+servers.Probes.Addr().String()+"/healthz"); code != http.StatusOK {
				t.Errorf("/healthz = %d meanwhile", code)
			}
			if name == "taken" {
				_ = taken.Close()
				polltest.Until(t, time.Minute, "the port to be served", func() bool { return len(servers.Failing()) == 0 })
				if code, _, _ := get(t, "http://"+address+"/metrics"); code != http.StatusOK {
					t.Errorf("/metrics = %d afterwards", code)
				}
			}
			if n := strings.Count(logged.String(), "retrying"); n != 1 {
				t.Errorf("logged %d times, want once:\n%s", n, logged.String())
			}
		})
	}
}

func TestServerIsATask(t *testing.T) {
	servers := NewServers(complete(ServersConfig{ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0"}))
	if got, want := Task(servers.Probes).String(), "probe server 127.0.0.1:0"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, quiet(), time.Minute, servers.Probes, servers.Status) }()
	polltest.Until(t, time.Minute, "servers to listen", func() bool { return len(servers.Failing()) == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if _, err := net.Dial("tcp", servers.Probes.Addr().String()); err == nil {
		t.Error("the port is open after the end")
	}
}

// askSocket asks for a path at a Unix socket.
func askSocket(t *testing.T, socket, path string) (code int, body string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

func TestSocketServesWhatTheProbePortDoes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe.sock")
	// Left by a killed process.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	servers := NewServers(complete(ServersConfig{
		ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0", ProbeSocket: socket, Ready: func() error { return errors.New("no device") },
	}))
	if _, failing := servers.Failing()["probe server unix:"+socket]; !failing {
		t.Errorf("before it runs: %v", servers.Failing())
	}
	run(t, servers.Socket)
	polltest.Until(t, time.Minute, "the socket", func() bool { return servers.Socket.Err() == nil })
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's file: %v, %v", info, err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/status": 200, "/metrics": 200} {
		if code, body := askSocket(t, socket, path); code != want {
			t.Errorf("%s = %d %q, want %d", path, code, body, want)
		}
	}
	// Another process with the same path leaves it alone.
	second := NewServers(complete(ServersConfig{ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0", ProbeSocket: socket}))
	run(t, second.Socket)
	polltest.Until(t, time.Minute, "the complaint", func() bool {
		return strings.Contains(second.Socket.Err().Error(), "another process is listening")
	})
	if code, _ := askSocket(t, socket, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("the first one doesn't answer any more: %d", code)
	}
}

// TestPortIsTakenWhenItGetsFree starts two processes with the same port, as in a rollout.
func TestPortIsTakenWhenItGetsFree(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	first := NewServers(complete(ServersConfig{ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0"})).Status
	done := make(chan error, 1)
	go func() { done <- first.Run(ctx) }()
	polltest.Until(t, time.Minute, "the first", func() bool { return first.Err() == nil })
	second := NewServers(complete(ServersConfig{ProbeAddress: "127.0.0.1:0", ListenAddress: first.Addr().String()})).Status
	run(t, second)
	polltest.Until(t, time.Minute, "the second to be refused", func() bool { return strings.Contains(second.Err().Error(), "in use") })
	refused := NewServers(complete(ServersConfig{ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0"})).Status
	for range 20 { // However often it was.
		if wait := refused.retry.Step(); wait >= time.Second {
			t.Fatalf("it tries again after %v", wait)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	polltest.Until(t, time.Minute, "the second to have the port", func() bool { return second.Err() == nil })
}
