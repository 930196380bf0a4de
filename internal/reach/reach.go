// Package reach has the checks that semaphorectl runs in temporary pods: whether API servers
// of other clusters are reachable from a node, which of its ports are free, and whether pods
// of two clusters reach each other. The pods run a program of our own image, so that no
// other image is needed.
package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	neturl "net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Request has the checks to run. It is the program's argument, as JSON.
type Request struct {
	// Map has the virtual subnets by which pods of other clusters know this one.
	Map config.SubnetMap `json:"map,omitempty"`
	// Servers are API servers to connect to, with their CA certificates.
	Servers []Server `json:"servers,omitempty"`
	// Proxy and NoProxy are HTTPS_PROXY and NO_PROXY for these.
	Proxy   string `json:"proxy,omitempty"`
	NoProxy string `json:"noProxy,omitempty"`
	// Ports are UDP ports that must be free.
	Ports []int `json:"ports,omitempty"`
	// Kernel checks whether the kernel has WireGuard and nf_tables, which needs NET_ADMIN.
	Kernel bool `json:"kernel,omitempty"`
	// Within is a range in which no link may have addresses.
	Within netip.Prefix `json:"within,omitzero"`
	// Own are the pod's own addresses; empty: those of its links.
	Own []string `json:"-"`
	// ServeFor is the number of seconds to serve, on Port, what other pods try.
	ServeFor int `json:"serveFor,omitempty"`
	// Try are addresses of pods that serve, Stream is the one of them to send a stream to.
	Try    []string `json:"try,omitempty"`
	Stream string   `json:"stream,omitempty"`
	// StreamFor is the duration of the stream in seconds, at most MaxStreamFor, and Streams the
	// number of streams at the same time, at most MaxStreams; 0: default.
	StreamFor int `json:"streamFor,omitempty"`
	Streams   int `json:"streams,omitempty"`
	// Asks are services to ask as clients do. With AskFor they are asked again and again for so
	// many seconds.
	Asks   []ServiceRequest `json:"asks,omitempty"`
	AskFor int              `json:"askFor,omitempty"`
	// Must makes the program fail if one of the asks does, for helm test.
	Must bool `json:"must,omitempty"`
	// Patience is the timeout of the first response in seconds; 0: default.
	Patience int `json:"patience,omitempty"`
}

// Server is an API server with its URLs.
type Server struct {
	URLs []string `json:"urls"`
	CA   string   `json:"ca"` // PEM
	// Proxy is a URL of config.ParseProxy, instead of Request.Proxy and NoProxy.
	Proxy string `json:"proxy,omitempty"`
}

// Result is the result, as JSON in the container's termination message.
type Result struct {
	// Servers has the error of each URL; empty: reachable.
	Servers map[string]string `json:"servers,omitempty"`
	// Taken has the errors of the ports that aren't free.
	Taken map[int]string `json:"taken,omitempty"`
	// Links are links with an address within the range, at most MaxLinks.
	Links []Link `json:"links,omitempty"`
	// Kernel is nil without a request for it, or when the check failed.
	Kernel *bool `json:"kernel,omitempty"`
	// NoFilter is why the kernel has no packet filter; empty: it has one, or wasn't asked.
	NoFilter string `json:"noFilter,omitempty"`
	// Serving is the error of serving.
	Serving string `json:"serving,omitempty"`
	// Connections and Services are in the order of the request.
	Connections []Try           `json:"tried,omitempty"`
	Services    []ServiceResult `json:"asked,omitempty"`
	Streamed    *Stream         `json:"streamed,omitempty"`
}

// Link is a link of the host with one of its addresses.
type Link struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
}

// MaxLinks is the maximum number of reported links.
const MaxLinks = 4

// linksWithin returns links with an address in a range.
func linksWithin(within netip.Prefix) []Link {
	links, _ := net.Interfaces() // Without an answer none is known to be in the way.
	var all []Link
	for _, link := range links {
		addresses, _ := link.Addrs()
		for _, a := range addresses {
			of, is := a.(*net.IPNet)
			if !is {
				continue
			}
			if ip, _ := netip.AddrFromSlice(of.IP); within.Contains(ip.Unmap()) && len(all) < MaxLinks {
				all = append(all, Link{link.Name, ip.Unmap()})
				break
			}
		}
	}
	return all
}

// serverLimit is the timeout of an API server.
const serverLimit = 10 * time.Second

// longest is the maximum length of an error: a termination message has at most 4,096 bytes.
const longest = 300

// Check checks servers and ports.
func Check(ctx context.Context, r Request) Result {
	result := Result{Servers: map[string]string{}, Taken: map[int]string{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, server := range r.Servers {
		for _, url := range server.URLs {
			group.Go(func() {
				err := server.ask(ctx, url, &httpproxy.Config{HTTPSProxy: r.Proxy, NoProxy: r.NoProxy})
				mu.Lock()
				defer mu.Unlock()
				result.Servers[url] = text(err)
			})
		}
	}
	group.Wait()
	if r.Within.IsValid() {
		result.Links = linksWithin(r.Within)
	}
	for _, port := range r.Ports {
		conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", ":"+strconv.Itoa(port))
		if err != nil {
			result.Taken[port] = text(err)
			continue
		}
		_ = conn.Close() // unused
	}
	return result
}

// ask connects to an API server at one of its URLs. Any response is a success, also 401:
// the certificate was verified.
func (s Server) ask(ctx context.Context, url string, proxy *httpproxy.Config) error {
	ctx, cancel := context.WithTimeout(ctx, serverLimit)
	defer cancel()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(s.CA)) {
		return errors.New("no certificates to verify it with")
	}
	of := proxy.ProxyFunc()
	if s.Proxy != "" {
		by, err := config.ParseProxy(s.Proxy)
		if err != nil {
			return err
		}
		of = func(*neturl.URL) (*neturl.URL, error) { return by, nil }
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
		Proxy: func(r *http.Request) (*neturl.URL, error) { return of(r.URL) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/version", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return kube.Through(transport.Proxy, url, err)
	}
	return response.Body.Close()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return cut(err.Error(), longest)
}

func cut(message string, size int) string { return message[:min(len(message), size)] }

// Port is the port of pods that serve.
const Port = 8642
