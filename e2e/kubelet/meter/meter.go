// Package meter measures traffic from one pod to another: numbered UDP packets at a steady
// rate, to count losses, and a TCP stream, to measure stalls. A meter is an HTTP server in a
// pod, by which a test starts streams and reads what has arrived.
//
//	POST   /streams/ID?to=ADDRESS&rate=10000   send to a meter from now on
//	DELETE /streams/ID                         end that; returns Sent
//	GET    /streams/ID                         what has arrived here; returns Received
//	GET    /get?url=URL                        requests a URL; returns the response
//	GET    /                                   returns the names of server and client
package meter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// Ports of a meter: of HTTP, and of the streams, UDP and TCP.
const (
	HTTPPort   = 8080
	StreamPort = 9000
)

// Sent is what was sent of a stream.
type Sent struct {
	// Packets were to be sent, Refused of them were not by the kernel.
	Packets, Refused int64
	// Late is the longest time between two turns of the sender, which has one each
	// millisecond: how long the machine, or the sender's container, ran other processes.
	Late time.Duration
	// Bytes went into the TCP stream, Broken says why it ended before the end.
	Bytes  int64
	Broken string
}

// Received is what arrived of a stream.
type Received struct {
	// Packets counts different ones, Duplicates those that came again.
	Packets, Duplicates int64
	// Silence is the longest time without a packet between two that came, the second
	// of them at Resumed.
	Silence time.Duration
	Resumed time.Time
	// Lost are packets in a row that are missing before one that came.
	Lost []Loss
	// Bytes came by the TCP stream. Stall is the longest time that nothing came,
	// until its end, which is Ended.
	Bytes int64
	Stall time.Duration
	Ended bool
}

// Loss is a number of packets in a row that didn't arrive.
type Loss struct {
	// After is how long after its start the stream had sent the last one before.
	After   time.Duration
	Packets int64
}

// Meter serves the requests above.
type Meter struct {
	streamPort int

	mu       sync.Mutex
	sending  map[uint64]*sender
	received map[uint64]*receiver
}

// New returns a meter whose streams go to and come from a port, which is StreamPort
// but in tests.
func New(streamPort int) *Meter {
	return &Meter{streamPort: streamPort, sending: map[uint64]*sender{}, received: map[uint64]*receiver{}}
}

// ServeHTTP implements http.Handler.
func (m *Meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		name, _ := os.Hostname()
		_, _ = fmt.Fprintf(w, "%s asked by %s\n", name, r.RemoteAddr)
	})
	mux.HandleFunc("GET /get", get)
	mux.HandleFunc("POST /streams/{id}", m.start)
	mux.HandleFunc("DELETE /streams/{id}", m.stop)
	mux.HandleFunc("GET /streams/{id}", m.report)
	mux.ServeHTTP(w, r)
}

// get asks for a URL, on a connection of its own.
func get(w http.ResponseWriter, r *http.Request) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.FormValue("url"), http.NoBody)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }()
	w.WriteHeader(response.StatusCode)
	// The client may have gone.
	_, _ = io.Copy(w, response.Body)
}

func id(w http.ResponseWriter, r *http.Request) (uint64, bool) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return 0, false
	}
	return id, true
}

func answer(w http.ResponseWriter, what any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(what) // The client may have gone.
}

func (m *Meter) start(w http.ResponseWriter, r *http.Request) {
	id, ok := id(w, r)
	if !ok {
		return
	}
	rate, err := strconv.Atoi(r.FormValue("rate"))
	if err != nil || rate <= 0 {
		http.Error(w, "rate: packets a second", http.StatusBadRequest)
		return
	}
	// It goes on after the request.
	s, err := startSender(context.WithoutCancel(r.Context()), id, net.JoinHostPort(r.FormValue("to"), strconv.Itoa(m.streamPort)), rate)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sending[id] = s
	answer(w, struct{}{})
}

func (m *Meter) stop(w http.ResponseWriter, r *http.Request) {
	id, ok := id(w, r)
	if !ok {
		return
	}
	m.mu.Lock()
	s := m.sending[id]
	delete(m.sending, id)
	m.mu.Unlock()
	if s == nil {
		http.Error(w, "no such stream", http.StatusNotFound)
		return
	}
	answer(w, s.stop())
}

func (m *Meter) report(w http.ResponseWriter, r *http.Request) {
	if id, ok := id(w, r); ok {
		answer(w, m.receiver(id).report())
	}
}

func (m *Meter) receiver(id uint64) *receiver {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.received[id] == nil {
		m.received[id] = &receiver{}
	}
	return m.received[id]
}

// Serve serves HTTP and takes streams until ctx ends.
func (m *Meter) Serve(ctx context.Context) error {
	var config net.ListenConfig
	packets, err := config.ListenPacket(ctx, "udp", ":"+strconv.Itoa(m.streamPort))
	if err != nil {
		return err
	}
	streams, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(m.streamPort))
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	requests := &http.Server{Addr: ":" + strconv.Itoa(HTTPPort), Handler: m, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = errors.Join(packets.Close(), streams.Close(), requests.Close()) })
	failed := make(chan error, 3)
	go func() { failed <- m.takePackets(packets) }()
	go func() { failed <- m.takeStreams(streams) }()
	go func() { failed <- requests.ListenAndServe() }()
	err = <-failed
	if ctx.Err() != nil {
		return nil
	}
	return err
}
