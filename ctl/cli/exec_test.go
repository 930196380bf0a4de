package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// webSocket answers exec with the messages that write sends, and closes the connection.
func webSocket(t *testing.T, protocol string, write func(channel func(byte, string) error)) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer "+secretToken {
			t.Errorf("authorization %q", got)
		}
		connection, err := (&websocket.Upgrader{Subprotocols: []string{protocol}}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		write(func(to byte, text string) error {
			return connection.WriteMessage(websocket.BinaryMessage, append([]byte{to}, text...))
		})
		_ = connection.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
		_, _, _ = connection.NextReader() // Wait until the client closes it.
	}
}

func TestExec(t *testing.T) {
	const success = `{"status":"Success"}`
	for name, c := range map[string]struct {
		protocol  string
		write     func(func(byte, string) error)
		out, fail string
	}{
		"output": {"v5.channel.k8s.io", func(send func(byte, string) error) {
			_, _, _, _ = send(1, ""), send(1, "one "), send(1, "two"), send(3, success)
		}, "one two", ""},
		"an older protocol": {"v4.channel.k8s.io", func(send func(byte, string) error) {
			_, _ = send(1, "one"), send(3, success)
		}, "one", ""},
		"no state": {"v5.channel.k8s.io", func(send func(byte, string) error) { _ = send(1, "one") }, "one", ""},
		"an exit code": {"v5.channel.k8s.io", func(send func(byte, string) error) {
			_, _, _ = send(1, "one"), send(2, "bad"), send(3, `{"status":"Failure","message":"exit code 1"}`)
		}, "one", "exit code 1: bad"},
		"as long as may be": {"v5.channel.k8s.io", func(send func(byte, string) error) {
			_, _ = send(1, strings.Repeat("x", 1000)), send(3, success)
		}, strings.Repeat("x", 1000), ""},
		"longer": {"v5.channel.k8s.io", func(send func(byte, string) error) {
			_, _ = send(1, strings.Repeat("x", 1001)), send(3, success)
		}, "", "output of more than 1000 bytes"},
	} {
		cluster, _, _ := hostile(t, webSocket(t, c.protocol, c.write))
		out, err := cluster.Exec(t.Context(), "n", "p", "c", []string{"true"}, 1000)
		if string(out) != c.out || (err == nil) != (c.fail == "") || err != nil && err.Error() != c.fail {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// TestHostileExec answers exec with responses that make client-go's executors exhaust the
// memory or block forever.
func TestHostileExec(t *testing.T) {
	raw := func(begin, part string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer connection.Close()
			endless(connection, begin, part)
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"endless headers": {raw("HTTP/1.1 101 Switching Protocols\r\n", "A: b\r\n"), errMetered.Error()},
		"endless header":  {raw("HTTP/1.1 101 Switching Protocols\r\nA: ", "b"), errMetered.Error()},
		"endless error":   {raw("HTTP/1.1 403 Forbidden\r\n\r\n", "no "), "403 Forbidden: no no"},
		"endless errors of the command": {webSocket(t, "v5.channel.k8s.io", func(send func(byte, string) error) {
			for err := error(nil); err == nil; {
				err = send(2, strings.Repeat("x", 64<<10))
			}
		}), errMetered.Error()},
		"endless output": {webSocket(t, "v5.channel.k8s.io", func(send func(byte, string) error) {
			for err := error(nil); err == nil; {
				err = send(1, strings.Repeat("x", 64<<10))
			}
		}), "output of more than 1048576 bytes"},
		"nothing": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline"},
		"no output": {webSocket(t, "v5.channel.k8s.io", func(func(byte, string) error) {
			time.Sleep(2 * time.Second)
		}), "deadline"},
	} {
		cluster, _, _ := hostile(t, c.answer)
		limit := 30 * time.Second
		if c.want == "deadline" {
			limit = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := cluster.Exec(ctx, "n", "p", "c", []string{"true"}, 1<<20)
		runtime.ReadMemStats(&after)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || len(out) > 0 && name != "endless output" {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
		if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 64 {
			t.Errorf("%s: %d MiB were allocated", name, taken)
		}
	}
}

// TestExecThroughAProxy connects through the kubeconfig's proxy.
func TestExecThroughAProxy(t *testing.T) {
	var asked bytes.Buffer
	c, _, _ := hostile(t, webSocket(t, "v5.channel.k8s.io", func(send func(byte, string) error) { _ = send(1, "one") }))
	proxy := proxyServer(t, &asked)
	c.Config.Proxy = http.ProxyURL(proxy)
	out, err := c.Exec(t.Context(), "n", "p", "c", []string{"true"}, 1000)
	if err != nil || string(out) != "one" || !strings.HasPrefix(asked.String(), "CONNECT 127.0.0.1:") {
		t.Errorf("%q, %v; the proxy was asked %q", out, err, asked.String())
	}
}

// proxyServer is a proxy that records its requests.
func proxyServer(t *testing.T, asked io.Writer) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(asked, "%s %s\n", r.Method, r.Host)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		go func() { _, _ = io.Copy(to, buffered) }() // Ends with the connections.
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return address
}
