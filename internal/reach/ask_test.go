package reach

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAsk asks a server, one that closes connections without a response, and a port without
// a server.
func TestAsk(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	listen := func() net.Listener {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	mute, none := listen(), listen()
	t.Cleanup(func() { _ = mute.Close() })
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).CloseWrite() // The client notices it.
		}
	}()
	answers, silent, refuses := server.Listener.Addr().String(), mute.Addr().String(), none.Addr().String()
	if err := none.Close(); err != nil {
		t.Fatal(err)
	}
	var result Result
	TryAll(t.Context(), Request{Own: []string{"127.0.0.1"}, Asks: []ServiceRequest{
		{Addresses: []string{answers, refuses}, HTTP: true}, {Addresses: []string{silent}, HTTP: true}, {Addresses: []string{silent}},
	}}, &result)
	if err := result.Services[0].Failed[answers]; err != "" {
		t.Errorf("a response isn't a success: %s", err)
	}
	if err := result.Services[0].Failed[refuses]; err != "connect: connection refused" {
		t.Errorf("a closed port: %q", err)
	}
	if err := result.Services[1].Failed[silent]; err != "connection closed without a response" {
		t.Errorf("HTTP without a response: %q", err)
	}
	if failed := result.Services[2].Failed; len(failed) > 0 {
		t.Errorf("without HTTP a connection is enough: %v", failed)
	}
}

// TestAskAgain asks a server that loses a request, again and again, and one that never answers.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 3 {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(server.Close)
	address, refuses := server.Listener.Addr().String(), "127.0.0.1:1"
	var result Result
	TryAll(t.Context(), Request{Own: []string{"127.0.0.1"}, AskFor: 6, Asks: []ServiceRequest{
		{Addresses: []string{address}, HTTP: true}, {Addresses: []string{refuses}},
	}}, &result)
	if got := result.Services[0]; got.Lost != 1 || got.Sent < 3 || got.Failed[address] != "connection closed without a response" {
		t.Errorf("%+v after %d requests", got, requests.Load())
	}
	if got := result.Services[1]; got.Sent > 0 || len(got.Failed) != 1 {
		t.Errorf("without a server: %+v", got)
	}
}

// TestAskedFits encodes results with errors of all services.
func TestAskedFits(t *testing.T) {
	t.Parallel()
	var r Result
	for range 10 {
		r.Connections = append(r.Connections, Try{Error: strings.Repeat("e", longest)})
	}
	for range MaxAsks {
		failed := map[string]string{}
		for _, host := range []string{"1", "2", "3", "4"} {
			failed["[fd00:1234:1234:1234:1234:1234:1234:123"+host+"]:65535"] = strings.Repeat("e", longest)
		}
		r.Services = append(r.Services, ServiceResult{Name: strings.Repeat("e", longest), DNS: strings.Repeat("e", longest), Failed: failed})
	}
	encoded, err := r.Encode()
	if err != nil || len(encoded) > maxResult {
		t.Errorf("%d bytes, %v", len(encoded), err)
	}
}

// TestAskEnds checks that asking ends.
func TestAskEnds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	// TEST-NET-1 (RFC 5737): no host answers, or the network refuses.
	if got := askService(t.Context(), ServiceRequest{Addresses: []string{"192.0.2.1:9"}}); len(got.Failed) != 1 {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(began); took > 3*askFor {
		t.Errorf("it took %s", took)
	}
}
