package kube

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// connectProxy is an HTTP proxy that opens tunnels to one address, whatever the request's, and
// records the requests.
type connectProxy struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newConnectProxy(t *testing.T, to string) *connectProxy {
	t.Helper()
	p := &connectProxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.Host)
		p.mu.Unlock()
		out, err := net.Dial("tcp", to)
		if err != nil || r.Method != http.MethodConnect {
			http.Error(w, fmt.Sprint(err), http.StatusBadGateway)
			return
		}
		in, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer in.Close()
		defer out.Close()
		_, _ = io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { _, _ = io.Copy(out, buffered); _ = out.Close() }()
		_, _ = io.Copy(in, out)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *connectProxy) requests() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.asked, ", ")
}

// TestProxy has one rule for API servers by URL and by kubeconfig: their own proxy, or else
// HTTPS_PROXY and NO_PROXY.
func TestProxy(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	api.set(func() { api.cert = ca.issue("api.example"); api.token = secret })
	token, authority := writeTemp(t, "token", []byte(secret)), writeTemp(t, "ca", ca.pem)
	kubeconfig := func(more string) config.Access {
		return config.Access{Kubeconfig: writeTemp(t, "kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
			"users: [{name: u, user: {tokenFile: "+token+"}}]\nclusters: [{name: c, cluster: {server: 'https://api.example:6443', certificate-authority: "+authority+more+"}}]\n"))}
	}
	url := config.Access{APIURL: "https://api.example:6443", CAFile: authority, TokenFile: token}
	behind := url
	behind.ProxyURL = "OTHER"
	const through, direct = "CONNECT api.example:6443", ""
	for name, c := range map[string]struct {
		access       config.Access
		https, no    string
		asked, other string // what HTTPS_PROXY and the other proxy see
	}{
		"by URL":                       {url, "PROXY", "", through, ""},
		"by URL, excepted":             {url, "PROXY", "10.0.0.0/8,.example", direct, ""},
		"by URL, none":                 {url, "", "", direct, ""},
		"by kubeconfig":                {kubeconfig(""), "PROXY", "", through, ""},
		"by kubeconfig, excepted":      {kubeconfig(""), "PROXY", "api.example", direct, ""},
		"proxy-url has precedence":     {kubeconfig(", proxy-url: 'OTHER'"), "PROXY", "", direct, through},
		"proxy-url has no exceptions":  {kubeconfig(", proxy-url: 'OTHER'"), "PROXY", ".example", direct, through},
		"the other proxy by proxy-url": {kubeconfig(", proxy-url: 'OTHER'"), "", "", direct, through},
		"its own has precedence":       {behind, "PROXY", "", direct, through},
		"its own has no exceptions":    {behind, "PROXY", ".example", direct, through},
		"the other proxy by URL":       {behind, "", "", direct, through},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, other := newConnectProxy(t, api.address()), newConnectProxy(t, api.address())
			t.Setenv("HTTPS_PROXY", strings.Replace(c.https, "PROXY", proxy.URL, 1))
			t.Setenv("NO_PROXY", c.no)
			t.Setenv("https_proxy", "")
			t.Setenv("no_proxy", "")
			if c.access.Kubeconfig != "" {
				content, err := os.ReadFile(c.access.Kubeconfig)
				if err != nil {
					t.Fatal(err)
				}
				replaceFile(t, c.access.Kubeconfig, bytes.ReplaceAll(content, []byte("OTHER"), []byte(other.URL)))
			}
			c.access.ProxyURL = strings.Replace(c.access.ProxyURL, "OTHER", other.URL, 1)
			dialed := ""
			client := clientWith(t, ClientConfig{Access: c.access, UserAgent: "test", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if strings.HasPrefix(address, "api.example:") {
					dialed, address = address, api.address()
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}})
			if err := listNodes(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			if proxy.requests() != c.asked || other.requests() != c.other || (dialed != "") == (c.asked+c.other != "") {
				t.Errorf("HTTPS_PROXY got %q, the other one %q, directly %q", proxy.requests(), other.requests(), dialed)
			}
		})
	}
}

// TestProxyOfAuthorities fetches the CA of a remote through the proxy.
func TestProxyOfAuthorities(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "")
	t.Setenv("https_proxy", "")
	t.Setenv("no_proxy", "")
	access := config.Access{APIURL: "https://api.example:6443", CAURL: "https://ca.example/ca.pem", TokenFile: writeTemp(t, "token", []byte(secret))}
	for _, own := range []string{"", "http://127.0.0.1:2"} {
		access.ProxyURL = own
		err := listNodes(t.Context(), clientFor(t, access))
		if want := "through the proxy " + cmp.Or(own, "http://127.0.0.1:1") + ": Get \"https://ca.example/ca.pem\": proxyconnect"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// TestProxyIsNamed connects through proxies that refuse, that don't listen and that don't answer, by
// each protocol: the error names the proxy, without its password.
func TestProxyIsNamed(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	token, authority := writeTemp(t, "token", []byte(secret)), writeTemp(t, "ca", ca.pem)
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	t.Cleanup(refuses.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for title, c := range map[string]struct{ proxy, says string }{
		"refuses":            {refuses.URL, "Forbidden"},
		"doesn't listen":     {"http://127.0.0.1:1", "connection refused"},
		"SOCKS, not there":   {"socks5://127.0.0.1:1", "connection refused"},
		"by TLS, not there":  {"https://127.0.0.1:1", "connection refused"},
		"doesn't answer":     {"http://" + silent.Addr().String(), "i/o timeout"},
		"SOCKS, no answer":   {"socks5://" + silent.Addr().String(), "i/o timeout"},
		"kubeconfig's, user": {strings.Replace(refuses.URL, "//", "//me:planted@", 1), "Forbidden"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			access := config.Access{APIURL: api.url(), CAFile: authority, TokenFile: token, ProxyURL: c.proxy}
			if strings.Contains(c.proxy, "@") {
				access = config.Access{Kubeconfig: writeTemp(t, "kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
					"users: [{name: u, user: {tokenFile: "+token+"}}]\nclusters: [{name: c, cluster: {server: '"+api.url()+"', certificate-authority: "+authority+", proxy-url: '"+c.proxy+"'}}]\n"))}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*handshakeTimeout)
			defer cancel()
			err := listNodes(ctx, clientFor(t, access))
			want := "through the proxy " + strings.Replace(c.proxy, "me:planted@", "", 1) + ": "
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "planted") || Reason(err) != Away {
				t.Errorf("%v, expected %q and %q", err, want, c.says)
			}
		})
	}
}

// TestSOCKS connects through a proxy by SOCKS 5 (RFC 1928).
func TestSOCKS(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	api.set(func() { api.cert = ca.issue("api.example"); api.token = secret })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	asked := make(chan string, 1)
	go func() {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		head := make([]byte, 3+4+1+len("api.example")+2) // methods; then the request with a name
		_, _ = io.ReadFull(in, head[:3])
		_, _ = in.Write([]byte{5, 0})
		_, _ = io.ReadFull(in, head[3:])
		asked <- string(head[8 : len(head)-2])
		_, _ = in.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 1})
		out, err := net.Dial("tcp", api.address())
		if err != nil {
			return
		}
		defer out.Close()
		go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		_, _ = io.Copy(in, out)
	}()
	client := clientFor(t, config.Access{
		APIURL: "https://api.example:6443", CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret)),
		ProxyURL: "socks5://" + listener.Addr().String(),
	})
	if err := listNodes(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if name := <-asked; name != "api.example" {
		t.Errorf("the proxy was asked for %q", name)
	}
}
