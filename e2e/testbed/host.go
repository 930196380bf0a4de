package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// Host is a node or a pod: it runs programs and has a network. Its methods may be called
// from any goroutine.
type Host struct {
	// Name is unique in the testbed.
	Name string

	tb *Testbed

	mu      sync.Mutex
	space   *sandbox.Space
	servers []*http.Server
}

// Space is where the host's processes run, until the next reboot.
func (h *Host) Space() *sandbox.Space {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.space
}

// Start runs a program in the host. The log of one without is
// Testbed.LogPath("<host>-<name>").
func (h *Host) Start(c sandbox.Command) (*sandbox.Process, error) {
	if c.Log == "" {
		c.Log = h.tb.LogPath(h.Name + "-" + c.Name)
	}
	return h.Space().Start(c)
}

// Run runs a program to its end, such as "ip", and returns what it printed.
func (h *Host) Run(ctx context.Context, program string, args ...string) (string, error) {
	return h.Space().Output(ctx, program, args...)
}

// Dial connects from the host. The address is an IP address and a port.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.Space().Dial(ctx, network, address)
}

// Listen listens on the host. Reboot and Close close the listener.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return h.Space().Listen(ctx, network, address)
}

// Serve serves HTTP on a port of all of the host's addresses. A nil handler
// answers with the host's name and the address that it was asked from.
func (h *Host) Serve(ctx context.Context, port int, handler http.Handler) error {
	if handler == nil {
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The client may have gone.
			_, _ = fmt.Fprintf(w, "%s asked by %s\n", h.Name, r.RemoteAddr)
		})
	}
	listener, err := h.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("serve HTTP on %s: %w", h.Name, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	h.mu.Lock()
	h.servers = append(h.servers, server)
	h.mu.Unlock()
	go func() {
		// Ends with ErrServerClosed in close.
		_ = server.Serve(listener)
	}()
	return nil
}

// Get requests a URL on a new connection, and returns the body of a response with status 200.
// ctx bounds all of it.
func (h *Host) Get(ctx context.Context, url string) (string, error) {
	transport := &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("%s: %w", h.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("%s: read the answer of %s: %w", h.Name, url, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s answers %s: %s", h.Name, url, response.Status, body)
	}
	return string(body), nil
}

// enter makes the space the host's.
func (h *Host) enter(space *sandbox.Space) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.space = space
}

// shutDown ends the host's servers and processes and lets its namespaces go.
func (h *Host) shutDown() error {
	h.mu.Lock()
	servers, space := h.servers, h.space
	h.servers = nil
	h.mu.Unlock()
	var errs []error
	for _, server := range servers {
		errs = append(errs, server.Close())
	}
	if space != nil {
		errs = append(errs, space.Close())
	}
	return errors.Join(errs...)
}
