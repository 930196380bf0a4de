package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

const secret = "eyJhbGciOi.very-secret-token.c2lnbmF0dXJl"

// clientFor returns a client for an access, whose connections end with the test.
func clientFor(t *testing.T, access config.Access) Client {
	t.Helper()
	return clientWith(t, ClientConfig{Access: access, UserAgent: "semaphore-test/1.0 (aws)"})
}

func clientWith(t *testing.T, c ClientConfig) Client {
	t.Helper()
	cfg, err := RESTConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return clientOf(t, cfg)
}

func clientOf(t *testing.T, cfg *rest.Config) Client {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	client, err := newClient(cfg, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func listNodes(ctx context.Context, client Client) error {
	_, err := client.Nodes().List(ctx, metav1.ListOptions{})
	return err
}

// caServer serves an authority's certificates, as the system's authority vouches.
type caServer struct {
	*httptest.Server
	answer  atomic.Pointer[http.HandlerFunc]
	fetches atomic.Int32
}

func newCAServer(t *testing.T, content []byte) *caServer {
	t.Helper()
	s := &caServer{}
	s.serve(content)
	s.Server = newTLSServer(t, public(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fetches.Add(1)
		(*s.answer.Load())(w, r)
	}))
	return s
}

func (s *caServer) serve(content []byte) {
	s.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
}

func (s *caServer) handle(h http.HandlerFunc) { s.answer.Store(&h) }

func TestServerIsVerifiedWithTheFetchedAuthority(t *testing.T) {
	ca := newAuthority()
	api, fetch := newAPIServer(t, ca), newCAServer(t, ca.pem)
	client := clientFor(t, config.Access{APIURL: api.url(), CAURL: fetch.URL, TokenFile: writeTemp(t, "token", []byte(secret))})
	if n := fetch.fetches.Load(); n != 0 {
		t.Errorf("%d fetches before the first request, want none", n)
	}
	for range 3 {
		if err := listNodes(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	if n := fetch.fetches.Load(); n != 1 {
		t.Errorf("%d fetches for three requests, want one", n)
	}
	request := api.seen()[0]
	if got := request.UserAgent(); got != "semaphore-test/1.0 (aws)" {
		t.Errorf("user agent %q", got)
	}
	if got := request.Header.Get("Accept"); !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf") {
		t.Errorf("accepts %q, want protobuf before JSON", got)
	}
	if request.ProtoMajor != 2 {
		t.Errorf("protocol %s, want HTTP/2", request.Proto)
	}
}

func TestServerOfAnotherAuthorityIsRefused(t *testing.T) {
	api, fetch := newAPIServer(t, newAuthority()), newCAServer(t, newAuthority().pem)
	client := clientFor(t, config.Access{APIURL: api.url(), CAURL: fetch.URL, TokenFile: writeTemp(t, "token", []byte(secret))})
	for range 5 {
		err := listNodes(t.Context(), client)
		if err == nil {
			t.Fatal("accepted")
		}
		if want := "does not verify with the authority from " + fetch.URL; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
	}
	if n := fetch.fetches.Load(); n > 2 {
		t.Errorf("%d fetches for five requests: a server with a bad certificate makes us fetch at will", n)
	}
	if len(api.seen()) > 0 {
		t.Error("the token went to a server that wasn't verified")
	}
}

func TestServerOfAnotherNameIsRefused(t *testing.T) {
	ca := newAuthority()
	api, fetch := newAPIServer(t, ca), newCAServer(t, ca.pem)
	api.set(func() { api.cert = ca.issue("other.example") })
	client := clientFor(t, config.Access{APIURL: api.url(), CAURL: fetch.URL, TokenFile: writeTemp(t, "token", []byte(secret))})
	if err := listNodes(t.Context(), client); err == nil || !strings.Contains(err.Error(), "x509: cannot validate certificate for 127.0.0.1") {
		t.Errorf("error %v, want the name to be refused", err)
	}
	if n := fetch.fetches.Load(); n != 1 {
		t.Errorf("%d fetches, want one: another authority wouldn't change the name", n)
	}
}

// newTestTransport loads whenever it has a reason.
func newTestTransport(authority caSource) *reloadingTransport {
	t := newReloadingTransport(&rest.Config{}, authority, &ClientConfig{Logger: slog.New(slog.DiscardHandler)})
	t.interval = 0
	return t
}

func TestRenewedAuthorityIsFetchedAgain(t *testing.T) {
	before, after := newAuthority(), newAuthority()
	api, fetch := newAPIServer(t, before), newCAServer(t, before.pem)
	transport := newTestTransport(caURL(fetch.URL, nil, nil))
	client := clientOf(t, &rest.Config{Host: api.url(), Transport: transport})
	if err := listNodes(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	api.set(func() { api.cert = after.issue() })
	api.http.CloseClientConnections()
	if err := listNodes(t.Context(), client); err == nil {
		t.Fatal("the new certificate was accepted before its authority was there")
	}
	fetch.serve(append(before.pem, after.pem...))
	if err := listNodes(t.Context(), client); err == nil {
		t.Error("the new certificate was accepted by the authority of before")
	}
	if err := listNodes(t.Context(), client); err != nil {
		t.Errorf("after the authority was fetched again: %v", err)
	}
}

func TestAuthorityFileIsReadAgain(t *testing.T) {
	before, after := newAuthority(), newAuthority()
	api := newAPIServer(t, before)
	file := writeTemp(t, "ca.pem", before.pem)
	transport := newTestTransport(caFile(file))
	client := clientOf(t, &rest.Config{Host: api.url(), Transport: transport})
	if err := listNodes(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	api.set(func() { api.cert = after.issue() })
	api.http.CloseClientConnections()
	replaceFile(t, file, after.pem)
	if err := listNodes(t.Context(), client); err == nil {
		t.Error("the new certificate was accepted by the authority of before")
	}
	if err := listNodes(t.Context(), client); err != nil {
		t.Errorf("after the file was read again: %v", err)
	}
}

func TestAuthorityThatCannotBeFetched(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(newAuthority().pem) }))
	t.Cleanup(plain.Close)
	tests := map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"missing": {http.NotFound, "response 404 Not Found"},
		"a web page": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>log in</html>") }, "contains no certificate in PEM",
		},
		"too much": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, caMaxBytes+1)) }, "response of more than 1048576 bytes",
		},
		"led away from https": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) }, "response 302 Found: redirects are not followed",
		},
		"led in circles": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "response 302 Found: redirects are not followed",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fetch := newCAServer(t, nil)
			fetch.handle(tt.answer)
			client := clientFor(t, config.Access{APIURL: "https://127.0.0.1:1", CAURL: fetch.URL, TokenFile: writeTemp(t, "token", []byte(secret))})
			err := listNodes(t.Context(), client)
			if err == nil || !strings.Contains(err.Error(), "load certificate authority: ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestAuthorityOfAnUntrustedServer(t *testing.T) {
	ca := newAuthority()
	fetch := newTLSServer(t, newAuthority(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ca.pem) }))
	_, err := caURL(fetch.URL, nil, nil).load()
	if err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("error %v, want the address itself to be refused", err)
	}
}

func TestAuthorityServerThatHangs(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	hanging := func() *caServer {
		server := newCAServer(t, nil)
		server.handle(func(http.ResponseWriter, *http.Request) { <-release })
		return server
	}
	client := caClient(nil)
	if client.Timeout != caTimeout {
		t.Errorf("timeout %v, want %v", client.Timeout, caTimeout)
	}
	client.Timeout = 50 * time.Millisecond
	if _, err := fetchCA(client, hanging().URL); err == nil || !strings.Contains(err.Error(), "Client.Timeout exceeded") {
		t.Errorf("error %v, want the timeout", err)
	}

	// Requests that wait for one another can be cancelled meanwhile.
	fetch := hanging()
	transport := newTestTransport(caURL(fetch.URL, nil, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for range cap(done) {
		go func() { _, err := transport.reload(ctx, 0); done <- err }()
	}
	eventually(t, "a fetch is under way", func() bool { return fetch.fetches.Load() == 1 })
	cancel()
	for range cap(done) {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want the cancellation", err)
		}
	}
}

func TestAccessThatIsRefused(t *testing.T) {
	kubeconfig := func(cluster string) string {
		return writeTemp(t, "kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
			"users: [{name: u, user: {token: "+secret+"}}]\nclusters: [{name: c, cluster: {"+cluster+"}}]\n"))
	}
	user := func(fields string) string {
		return writeTemp(t, "kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
			"users: [{name: u, user: {"+fields+"}}]\nclusters: [{name: c, cluster: {server: 'https://a', certificate-authority: "+writeTemp(t, "ca", newAuthority().pem)+"}}]\n"))
	}
	tests := map[string]struct {
		access config.Access
		want   string
	}{
		"kubeconfig that is missing":         {config.Access{Kubeconfig: "/nowhere"}, "load kubeconfig /nowhere: "},
		"kubeconfig that is broken":          {config.Access{Kubeconfig: writeTemp(t, "k", []byte("{"+secret))}, "load kubeconfig "},
		"kubeconfig without a context":       {config.Access{Kubeconfig: writeTemp(t, "k", []byte("apiVersion: v1\nkind: Config\n"))}, "use kubeconfig "},
		"kubeconfig that skips verification": {config.Access{Kubeconfig: kubeconfig("server: 'https://a', insecure-skip-tls-verify: true")}, "insecure-skip-tls-verify is not supported"},
		"kubeconfig without an authority":    {config.Access{Kubeconfig: kubeconfig("server: 'https://a'")}, "neither certificate-authority-data nor certificate-authority"},
		"kubeconfig without TLS":             {config.Access{Kubeconfig: kubeconfig("server: 'http://a'")}, "does not begin with https://"},
		"kubeconfig with a program":          {config.Access{Kubeconfig: user("exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: x, args: [" + secret + "]}")}, `its user: exec needs the program "x", which this image doesn't contain: use tokenFile`},
		"kubeconfig with a provider":         {config.Access{Kubeconfig: user("auth-provider: {name: oidc, config: {id-token: " + secret + "}}")}, "its user: auth-provider is not supported: use tokenFile"},
		"kubeconfig with a password":         {config.Access{Kubeconfig: user("username: u, password: " + secret)}, "its user: username and password are not supported"},
		"kubeconfig with a token for a path": {config.Access{Kubeconfig: user("client-certificate: " + secret + ", client-key: " + secret)}, "it has a token as client-certificate"},
		"kubeconfig with a token for a URL":  {config.Access{Kubeconfig: kubeconfig("server: 'https://" + secret + "@', certificate-authority: x")}, "not the URL of an API server"},
		"address without TLS":                {config.Access{APIURL: "http://a", CAFile: "/ca", TokenFile: "/t"}, "does not begin with https://"},
		"authority without TLS":              {config.Access{APIURL: "https://a", CAURL: "http://ca", TokenFile: "/t"}, "certificate authority: address http://ca does not begin with https://"},
		"no authority":                       {config.Access{APIURL: "https://a", TokenFile: "/t"}, "no certificate authority"},
		"two authorities":                    {config.Access{APIURL: "https://a", CAURL: "https://ca", CAFile: "/ca", TokenFile: "/t"}, "both a file and a URL"},
		"no token":                           {config.Access{APIURL: "https://a", CAURL: "https://ca"}, "no token file"},
		"no cluster around":                  {config.Access{}, "in-cluster configuration: "},
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := RESTConfig(ClientConfig{Access: tt.access})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("error holds the token: %v", err)
			}
		})
	}
}

func TestKubeconfig(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	token := writeTemp(t, "token", []byte(secret))
	api.set(func() { api.token = secret })
	file := writeTemp(t, "kubeconfig", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"users: [{name: u, user: {tokenFile: "+token+"}}]\nclusters: [{name: c, cluster: {server: '"+api.url()+"', certificate-authority: "+writeTemp(t, "ca", ca.pem)+"}}]\n"))
	client := clientFor(t, config.Access{Kubeconfig: file})
	if err := listNodes(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	api.set(func() { api.token = "next" })
	replaceFile(t, token, []byte("next"))
	if err := listNodes(t.Context(), client); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("error %v with the cached token, want Unauthorized", err)
	}
	if err := listNodes(t.Context(), client); err != nil {
		t.Errorf("after the token was replaced: %v", err)
	}
}

func TestTokenIsReadAsItRotates(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	api.set(func() { api.token = "first" })
	token := writeTemp(t, "token", []byte("first\n"))
	client := clientFor(t, config.Access{APIURL: api.url(), CAFile: writeTemp(t, "ca", ca.pem), TokenFile: token})
	if err := listNodes(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	api.set(func() { api.token = "second" })
	if err := listNodes(t.Context(), client); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("error %v with an expired token, want Unauthorized", err)
	}
	replaceFile(t, token, []byte("second\n"))
	if err := listNodes(t.Context(), client); err != nil {
		t.Errorf("after the token was replaced: %v", err)
	}
}

func TestTokensThatCannotBeUsed(t *testing.T) {
	ca := newAuthority()
	api := newAPIServer(t, ca)
	for name, tt := range map[string]struct{ content, want string }{
		"empty":     {" \n", "read empty token"},
		"two lines": {secret + "\n" + secret, `invalid header field value for "Authorization"`},
		"not text":  {secret + "\x00", `invalid header field value for "Authorization"`},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientFor(t, config.Access{APIURL: api.url(), CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(tt.content))})
			err := listNodes(t.Context(), client)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("error %v, want %q and no token in it", err, tt.want)
			}
		})
	}
	client := clientFor(t, config.Access{APIURL: api.url(), CAFile: writeTemp(t, "ca", ca.pem), TokenFile: "/nowhere/token"})
	if err := listNodes(t.Context(), client); err == nil || !strings.Contains(err.Error(), "/nowhere/token: no such file") {
		t.Errorf("error %v, want that of the missing file", err)
	}
}

// roundTripper is an http.RoundTripper made of a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWatchThatTimesOutIsAnErrorAtOnce(t *testing.T) {
	attempts := 0
	cfg := &rest.Config{Host: "https://unreachable", Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		attempts++
		return nil, os.ErrDeadlineExceeded
	})}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: requestTimeout, next: next}
	})
	_, err := clientOf(t, cfg).Nodes().Watch(t.Context(), metav1.ListOptions{})
	if !errors.Is(err, os.ErrDeadlineExceeded) || attempts != 1 {
		t.Errorf("error %v after %d attempts, want the timeout after one", err, attempts)
	}
}

// TestRequestsEnd checks that requests without a deadline end on a server that never
// responds, or never ends its response, and that watches go on.
func TestRequestsEnd(t *testing.T) {
	t.Parallel()
	ca := newAuthority()
	server := newTLSServer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeJSON)
		if r.Method != http.MethodPatch {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}))
	cfg, err := RESTConfig(ClientConfig{Access: config.Access{
		APIURL: server.URL, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret)),
	}, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: 100 * time.Millisecond, next: next}
	})
	client := clientOf(t, cfg)
	watch, err := client.Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := client.Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("an answer that doesn't end is none")
	}
	if _, err := client.Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err == nil {
		t.Error("an answer that doesn't begin is none")
	}
	select {
	case event, open := <-watch.ResultChan():
		t.Errorf("the watch has ended: %v, %t", event, open)
	default:
	}
}
