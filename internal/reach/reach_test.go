package reach

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

func TestLook(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "unauthorized", http.StatusUnauthorized)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	ca := func(s *httptest.Server) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	}
	taken, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.LocalAddr().(*net.UDPAddr).Port
	// The certificate of httptest includes this name; the port is closed.
	away := "https://127.0.0.1:1"
	got := Check(t.Context(), Request{Ports: []int{port}, Servers: []Server{{URLs: []string{server.URL, away}, CA: ca(server)}, {URLs: []string{other.URL}, CA: "no certificate"}}})
	if got.Servers[server.URL] != "" || !strings.Contains(got.Servers[away], "refused") || !strings.Contains(got.Servers[other.URL], "no certificates") {
		t.Errorf("servers %q", got.Servers)
	}
	if !strings.Contains(got.Taken[port], "in use") {
		t.Errorf("taken %v", got.Taken)
	}
	got = Check(t.Context(), Request{Servers: []Server{{URLs: []string{server.URL}, CA: another(t)}}})
	if !strings.Contains(got.Servers[server.URL], "unknown authority") {
		t.Errorf("with another authority %q", got.Servers)
	}
}

func TestLinksWithin(t *testing.T) {
	for text, want := range map[string]string{"127.0.0.0/8": "[{lo 127.0.0.1}]", "198.51.100.0/24": "[]"} {
		within := netip.MustParsePrefix(text)
		encoded, err := json.Marshal(Request{Within: within})
		if err != nil {
			t.Fatal(err)
		}
		var request Request
		if err := json.Unmarshal(encoded, &request); err != nil || request.Within != within {
			t.Fatalf("%s: %v, %v", encoded, request, err)
		}
		if got := fmt.Sprint(Check(t.Context(), request).Links); got != want {
			t.Errorf("in %s: %s, want %s", text, got, want)
		}
	}
	if encoded, err := json.Marshal(Request{}); err != nil || string(encoded) != "{}" {
		t.Errorf("%s, %v", encoded, err)
	}
}

// another is an authority that has signed nothing.
func another(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestLookThroughAProxy connects to API servers as programs with HTTPS_PROXY do.
func TestLookThroughAProxy(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.StartTLS()
	defer server.Close()
	var asked atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(&r.Host)
		out, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		in, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		_, _ = io.Copy(in, out)
		_ = in.Close()
	}))
	defer proxy.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	// The certificate of httptest includes this name.
	const url = "https://example.com:6443"
	got := Check(t.Context(), Request{Proxy: proxy.URL, Servers: []Server{{URLs: []string{url}, CA: ca}}})
	if host := asked.Load(); got.Servers[url] != "" || host == nil || *host != "example.com:6443" {
		t.Errorf("%q", got.Servers)
	}
	asked.Store(nil)
	const excepted = "https://127.0.0.1:1"
	got = Check(t.Context(), Request{Proxy: proxy.URL, NoProxy: "127.0.0.1", Servers: []Server{{URLs: []string{excepted}, CA: ca}}})
	if asked.Load() != nil || !strings.Contains(got.Servers[excepted], "refused") {
		t.Errorf("excepted: %q", got.Servers)
	}
	// The proxy of one server replaces both.
	got = Check(t.Context(), Request{Proxy: "http://127.0.0.1:1", NoProxy: "example.com", Servers: []Server{{URLs: []string{url}, CA: ca, Proxy: proxy.URL}}})
	if host := asked.Load(); got.Servers[url] != "" || host == nil || *host != "example.com:6443" {
		t.Errorf("its own: %q", got.Servers)
	}
	got = Check(t.Context(), Request{Servers: []Server{{URLs: []string{url}, CA: ca, Proxy: "http://127.0.0.1:1"}}})
	if !strings.Contains(got.Servers[url], "through the proxy http://127.0.0.1:1: ") {
		t.Errorf("its own, which isn't there: %q", got.Servers)
	}
}
