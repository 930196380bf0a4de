package kubetest

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Serve serves over TLS and HTTP/2 at a listener, until Kill or the end of the test.
func Serve(t testing.TB, listener net.Listener, cfg *tls.Config, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = listener
	server.EnableHTTP2 = true
	// Clients that disconnect would be logged.
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = cfg
	server.StartTLS()
	t.Cleanup(func() { Kill(server) })
	return server
}

// Kill ends a server and all connections to it at once. It may be called again.
func Kill(server *httptest.Server) {
	_ = server.Listener.Close()
	server.CloseClientConnections()
	server.Close()
}
