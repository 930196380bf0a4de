package controllers_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// gate is a proxy of an API server that refuses requests.
type gate struct {
	server *httptest.Server

	mu     sync.Mutex
	refuse func(path string) bool
	change context.CancelFunc // ends the requests that are being answered
	ctx    context.Context    // of requests
}

func newGate(t *testing.T, c *testbed.Cluster) *gate {
	t.Helper()
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData, cfg.CertFile, cfg.KeyFile, cfg.BearerToken, cfg.BearerTokenFile = nil, nil, "", "", "", ""
	transport, err := rest.TransportFor(cfg)
	must(t, err)
	target, err := url.Parse(cfg.Host)
	must(t, err)
	quiet := log.New(io.Discard, "", 0)
	g := &gate{}
	g.set(func(string) bool { return false })
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
	}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		ctx, refused := g.ctx, g.refuse(r.URL.Path)
		g.mu.Unlock()
		if refused {
			http.Error(w, "refused", http.StatusBadGateway)
			return
		}
		through, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		proxy.ServeHTTP(w, r.WithContext(through))
	}))
	g.server.EnableHTTP2, g.server.Config.ErrorLog = true, quiet
	g.server.StartTLS()
	t.Cleanup(func() {
		g.set(func(string) bool { return true })
		g.server.Close()
	})
	return g
}

// set ends all requests, and from now on refuses some.
func (g *gate) set(refuse func(path string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.change != nil {
		g.change()
	}
	g.refuse = refuse
	g.ctx, g.change = context.WithCancel(context.Background())
}

// open ends no requests, and from now on refuses none.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = func(string) bool { return false }
}

// through makes a remote's client use a gate.
func (b *mirrorBed) through(t *testing.T, g *gate, r *mirror.Remote) {
	t.Helper()
	client, err := kube.NewClient(&rest.Config{
		Host: g.server.URL, BearerTokenFile: b.credentials(t, b.cluster(r.Name)).TokenFile(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw}),
		},
	})
	must(t, err)
	r.Client = func() (kube.Client, error) { return client, nil }
}

// watches returns the state of a remote's watches of global services.
func (i *mirrorInstance) watches(t *testing.T, name string) (services, slices statuspage.Watch) {
	t.Helper()
	for _, c := range i.Status().Clusters {
		if c.Name == name {
			return c.Watches[len(c.Watches)-2], c.Watches[len(c.Watches)-1]
		}
	}
	t.Fatalf("no cluster %s in the status", name)
	return services, slices
}

// testContactApart lets the watches of a remote that was out of contact recover one after
// the other, further apart than the time after which it is stale.
func (b *mirrorBed) testContactApart(t *testing.T) {
	const staleAfter = 3 * time.Second
	g := newGate(t, b.merit)
	i := b.start(t, func(cfg *mirror.Config) {
		cfg.Remotes[1].StaleAfter = staleAfter
		b.through(t, g, &cfg.Remotes[1])
	})
	s := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", s, slice(s, "web-1", "10.6.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")

	g.set(func(string) bool { return true })
	b.leadsTo(t, globalName, "10.4.0.1")
	g.set(func(path string) bool { return strings.HasSuffix(path, "/endpointslices") })
	var since time.Time
	wait(t, "one watch to be in contact for long", func() error {
		services, slices := i.watches(t, "merit")
		if slices.Error == "" || !slices.Stale {
			return fmt.Errorf("endpoint slices aren't stale: %+v", slices)
		}
		switch {
		case services.Error != "":
			return errors.New(services.Error)
		case since.IsZero():
			since = time.Now()
		}
		if contact := time.Since(since); contact < 2*staleAfter {
			return fmt.Errorf("for %v", contact)
		}
		return nil
	})
	g.open()
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
}

// testContactQuiet waits for longer than StaleAfter with a remote in which nothing changes.
func (b *mirrorBed) testContactQuiet(t *testing.T) {
	const staleAfter = 10 * time.Second
	s := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", s, slice(s, "web-1", "10.6.0.1")))
	i := b.start(t, func(cfg *mirror.Config) { cfg.Remotes[1].StaleAfter = staleAfter })
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	begin := time.Now()
	wait(t, "the end of the quiet", func() error {
		services, slices := i.watches(t, "merit")
		for _, w := range []statuspage.Watch{services, slices} {
			if w.Stale {
				t.Fatalf("stale in spite of contact: %+v", w)
			}
		}
		if since := time.Since(begin); since < 2*staleAfter {
			return fmt.Errorf("quiet for %v", since)
		}
		return nil
	})
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
}
