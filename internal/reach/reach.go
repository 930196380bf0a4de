// Package reach is what a pod finds out for an administrator: whether API servers of
// other clusters are reached from its node, which ports of the node are free, and
// whether pods of two clusters answer each other. semaphorectl asks, and a program of
// our image answers, so that no other image is needed.
package reach

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Request is what is asked. It is the program's argument, as JSON.
type Request struct {
	// Secret is what pods that meet, serve and try have in common.
	Secret Secret `json:"secret,omitempty"`
	// Servers are API servers, each with the certificates that its own is verified
	// with.
	Servers []Server `json:"servers,omitempty"`
	// Ports are UDP ports that are to be free.
	Ports []int `json:"ports,omitempty"`
	// Kernel asks whether the kernel has WireGuard, which takes NET_ADMIN.
	Kernel bool `json:"kernel,omitempty"`
	// Meet has the pod answer others on MeetPort, and ask those at these addresses
	// until they answer; it ends after so many seconds. Await is how many pods besides
	// these are to ask it, which it asks back.
	Meet     []string `json:"meet,omitempty"`
	Await    int      `json:"await,omitempty"`
	MeetFor  int      `json:"meetFor,omitempty"`
	MeetFrom []string `json:"-"` // the pod's own addresses
	// ServeFor has the pod answer for so many seconds what others try.
	ServeFor int `json:"serveFor,omitempty"`
	// Try are addresses of pods that serve, Stream the one of these that a stream is sent
	// to, and Names those that are resolved.
	Try    []string `json:"try,omitempty"`
	Stream string   `json:"stream,omitempty"`
	Names  []string `json:"names,omitempty"`
	// Patience is how many seconds answers may take to come for the first time; 0 leaves
	// that to the pod.
	Patience int `json:"patience,omitempty"`
}

// Server is an API server, with where it may be reached.
type Server struct {
	URLs []string `json:"urls"`
	CA   string   `json:"ca"` // PEM
}

// Result is the answer, as JSON in the container's termination message.
type Result struct {
	// Servers says of each URL why it wasn't reached; empty: it was.
	Servers map[string]string `json:"servers,omitempty"`
	// Taken says of each port that isn't free why.
	Taken map[int]string `json:"taken,omitempty"`
	// Kernel is nil when nobody has asked, or it couldn't be found out.
	Kernel *bool `json:"kernel,omitempty"`
	// Met says why pods didn't answer each other; empty: they did.
	Met string `json:"met,omitempty"`
	// Tried and Named are in the order of what was asked.
	Tried    []Try   `json:"tried,omitempty"`
	Named    []Name  `json:"named,omitempty"`
	Streamed *Stream `json:"streamed,omitempty"`
}

// serverLimit is how long an API server may take.
const serverLimit = 10 * time.Second

// longest is how many characters of an error are told: a termination message has 4,096
// bytes for everything.
const longest = 300

// Look answers what is asked about servers and ports.
func Check(ctx context.Context, r Request) Result {
	result := Result{Servers: map[string]string{}, Taken: map[int]string{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, server := range r.Servers {
		for _, url := range server.URLs {
			group.Go(func() {
				err := server.ask(ctx, url)
				mu.Lock()
				defer mu.Unlock()
				result.Servers[url] = text(err)
			})
		}
	}
	group.Wait()
	for _, port := range r.Ports {
		conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", ":"+strconv.Itoa(port))
		if err != nil {
			result.Taken[port] = text(err)
			continue
		}
		_ = conn.Close() // It was only to be had.
	}
	return result
}

// ask connects to an API server at one of its addresses. Any answer will do, also that nobody may ask: the
// certificate was verified.
func (s Server) ask(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, serverLimit)
	defer cancel()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(s.CA)) {
		return errors.New("no certificates to verify it with")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/version", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return cut(err.Error(), longest)
}

func cut(message string, room int) string { return message[:min(len(message), room)] }

// MeetPort is where pods that meet listen.
const MeetPort = 8642

// ReadyPath answers 200 once the others have been asked and have answered.
const ReadyPath = "/ready"

// Meeting is a pod that meets others.
type Meeting struct {
	secret Secret
	own    []string // addresses
	known  []string // from the beginning
	await  int
	client *http.Client

	mu    sync.Mutex
	met   map[string]error    // by address
	asked map[string]struct{} // by those who weren't known, by all of their addresses
	over  bool                // there were more addresses than it may ask
	wake  chan struct{}
}

// NewMeeting takes what all pods know, the pod's own addresses, those of the pods that it is
// to ask, and how many more are to ask it.
func NewMeeting(secret Secret, own, others []string, await int) *Meeting {
	m := &Meeting{
		secret: secret, own: own, known: others, await: await, met: map[string]error{}, asked: map[string]struct{}{}, wake: make(chan struct{}, 1),
		client: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	m.add(others)
	return m
}

var errNotYet = errors.New("hasn't answered yet")

// most is how many addresses may be asked: of 32 clusters with two families.
const most = 64

// add has others asked, too, of the families that this pod has.
func (m *Meeting) add(others []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range others {
		if _, known := m.met[other]; known || net.ParseIP(other) == nil {
			continue
		}
		if len(m.met) >= most {
			m.over = true
			continue
		}
		for _, own := range m.own {
			if strings.Contains(own, ":") == strings.Contains(other, ":") {
				m.met[other] = errNotYet
			}
		}
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// State is an error until all have asked and have answered.
func (m *Meeting) State() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	if missing := m.await - len(m.asked); missing > 0 {
		errs = append(errs, fmt.Errorf("%d pods haven't asked yet", missing))
	}
	if m.over {
		errs = append(errs, fmt.Errorf("there are more than %d addresses to ask", most))
	}
	for address, err := range m.met {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
		}
	}
	return errors.Join(errs...)
}

// ServeHTTP answers those who ask, and the kubelet.
func (m *Meeting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == ReadyPath {
		if err := m.State(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
		return
	}
	from, nonce := r.URL.Query().Get("from"), r.Header.Get(nonceHeader)
	if m.secret != "" && !slices.ContainsFunc(m.own, func(own string) bool { return m.secret.proven(r.Header, "ask", nonce, plain(own), from) }) {
		http.Error(w, "the request isn't of this run", http.StatusForbidden)
		return
	}
	m.secret.prove(w.Header(), "answer", nonce)
	says := strings.Split(from, ",")
	m.add(says)
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	for _, address := range says {
		if ip := net.ParseIP(address); ip != nil && ip.Equal(net.ParseIP(host)) {
			m.askedBy(says)
			return
		}
	}
	http.Error(w, "masqueraded: it came from "+host, http.StatusConflict)
}

// askedBy notes a pod that it wasn't told of, which has asked from an address of its own.
func (m *Meeting) askedBy(addresses []string) {
	if slices.ContainsFunc(addresses, func(a string) bool { return slices.Contains(m.known, a) }) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asked) < most {
		m.asked[strings.Join(addresses, ",")] = struct{}{}
	}
}

// Ask asks the others again and again, until ctx ends.
func (m *Meeting) Ask(ctx context.Context) {
	for {
		for _, address := range m.missing() {
			err := m.ask(ctx, address)
			m.mu.Lock()
			m.met[address] = err
			m.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (m *Meeting) missing() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for address, err := range m.met {
		if err != nil {
			list = append(list, address)
		}
	}
	return list
}

func (m *Meeting) ask(ctx context.Context, address string) error {
	from, nonce := strings.Join(m.own, ","), rand.Text()
	url := "http://" + net.JoinHostPort(address, strconv.Itoa(MeetPort)) + "/?from=" + from
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set(nonceHeader, nonce)
	m.secret.prove(request.Header, "ask", nonce, plain(address), from)
	response, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // Only read.
	body, _ := io.ReadAll(io.LimitReader(response.Body, longest))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	if !m.secret.proven(response.Header, "answer", nonce) {
		return errStranger
	}
	return nil
}

var errStranger = errors.New("what answers there isn't a pod of this run")
