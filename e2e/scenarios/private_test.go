package scenarios_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// connectProxy is a proxy for HTTP on a node, with CONNECT only.
type connectProxy struct {
	node *testbed.Node

	mu    sync.Mutex
	fault string // refuse or hang; empty: it connects
	conns []net.Conn
	asked map[string]bool
}

const proxyPort = 3128

func (p *connectProxy) url() string {
	return fmt.Sprintf("http://%s", net.JoinHostPort(p.node.Addresses()[0].String(), fmt.Sprint(proxyPort)))
}

// set changes what the proxy does, and closes its connections.
func (p *connectProxy) set(fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// opened returns whether connections to an address were opened.
func (p *connectProxy) opened(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[address]
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	switch {
	case r.Method != http.MethodConnect || fault == "refuse":
		http.Error(w, "not admitted", http.StatusForbidden)
		return
	case fault == "hang":
		<-r.Context().Done()
		return
	}
	out, err := p.node.Dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	p.mu.Lock()
	p.asked[r.Host] = true
	p.conns = append(p.conns, in)
	p.mu.Unlock()
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() { _, _ = io.Copy(out, buffered); _ = out.Close() }()
	_, _ = io.Copy(in, out)
}

// TestPrivateAPIServer has an API server of gcp that nodes of aws reach only through a proxy beside it:
// an agent and a service mirror of aws use it. One that refuses or hangs is as an API server that
// isn't reached, and errors name it.
func TestPrivateAPIServer(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	p, err := programs.BarePair(ctx, tb, 1, func(string) {}, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, p.AWS, p.GCP))
	must(t, programs.Grant(ctx, programs.ServiceMirror, p.AWS, p.GCP))
	here, there := p.AWS.Nodes()[0], p.GCP.Nodes()[0]
	server := strings.TrimPrefix(p.GCP.APIURL(), "https://")
	host, port, err := net.SplitHostPort(server)
	must(t, err)
	_, err = here.Run(ctx, "nft", fmt.Sprintf("table ip private { chain out { type filter hook output priority 0; ip daddr %s tcp dport %s drop; }; }", host, port))
	must(t, err)
	proxy := &connectProxy{node: there, asked: map[string]bool{}}
	must(t, there.Serve(ctx, proxyPort, proxy))
	t.Cleanup(func() { proxy.set("refuse") })

	_, err = programs.StartAgent(ctx, program(t, programs.WireGuard), there, p.AWS)
	must(t, err)
	agent, err := programs.PrepareAgent(ctx, program(t, programs.WireGuard), here, p.GCP)
	must(t, err)
	mirror, err := programs.Prepare(ctx, programs.Config{Name: programs.ServiceMirror, Binary: program(t, programs.ServiceMirror), Port: 8080}, here, p.GCP)
	must(t, err)
	variable := programs.Variable("gcp", "PROXY_URL")
	agent.Env[variable], mirror.Env[variable] = proxy.url(), proxy.url()
	must(t, agent.Start())
	must(t, mirror.Start())

	must(t, p.WaitConnected(within(t, 2*time.Minute)))
	mirrored := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := p.AWS.Client().CoreV1().Services(programs.Namespace).Get(ctx, "gcp-shop-73736d-"+name, metav1.GetOptions{})
			return err
		}
	}
	putService(t, p.GCP, "shop", service("web", "mirror-service=true"), p.Pods[1])
	eventually(t, time.Minute, "the mirror of web", mirrored("web"))
	if !proxy.opened(server) {
		t.Error("no connection to the API server was opened through the proxy")
	}
	f := &failover{Pair: p, mirror: mirror}
	for _, c := range []struct{ fault, says string }{{"refuse", "Forbidden"}, {"hang", "i/o timeout"}} {
		fault := c.fault
		proxy.set(fault)
		named := "through the proxy " + proxy.url()
		eventually(t, 4*time.Minute, "errors of a proxy with the fault "+fault, func(ctx context.Context) error {
			status, err := f.status(ctx)
			if err != nil {
				return err
			}
			for _, of := range status.Clusters {
				for _, w := range of.Watches {
					if of.Name == "gcp" && (!strings.Contains(w.Error, named) || !strings.Contains(w.Error, c.says)) {
						return fmt.Errorf("the mirror's watch of %s has the error %q", w.Kind, w.Error)
					}
				}
			}
			return hasAPIError(ctx, agent, "gcp", named, c.says)
		})
		status, err := agent.Status(t.Context())
		must(t, err)
		t.Logf("%s: %s", fault, status.Remote("gcp").API.Error)
		must(t, p.WaitConnected(within(t, time.Minute)))
		must(t, mirrored("web")(t.Context()))
	}
	proxy.set("")
	putService(t, p.GCP, "shop", service("api", "mirror-service=true"), p.Pods[1])
	eventually(t, 2*time.Minute, "the mirror of api", mirrored("api"))
	eventually(t, 2*time.Minute, "contact of the agent", func(ctx context.Context) error {
		status, err := agent.Status(ctx)
		if err == nil && status.Remote("gcp").API.Error != "" {
			err = fmt.Errorf("still %s", status.Remote("gcp").API.Error)
		}
		return err
	})
}
