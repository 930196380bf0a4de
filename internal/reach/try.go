package reach

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Try is the result of trying one pod of another cluster.
type Try struct {
	// Error is the error over TCP; empty: success.
	Error string `json:"error,omitempty"`
	// Seen is the source address that the other pod saw, if it isn't one of this pod.
	Seen string `json:"seen,omitempty"`
	// Datagrams is the error over UDP after success over TCP.
	Datagrams string `json:"datagrams,omitempty"`
	// Burst are the bytes of datagrams that were sent after either error, of which the agents'
	// counters show how far they get; all fields below are zero then.
	Burst int `json:"burst,omitempty"`
	// RTT is the median round-trip time of small datagrams in microseconds.
	RTT int64 `json:"rtt,omitempty"`
	// MTU is the kernel's path MTU in bytes of IP packets, Carries the size of the largest
	// echoed packet. If the latter is smaller, full-size packets are lost silently.
	MTU     int `json:"mtu,omitempty"`
	Carries int `json:"carries,omitempty"`
}

// Stream is the rate of TCP streams together in bits per second.
type Stream struct {
	Error string  `json:"error,omitempty"`
	Rate  float64 `json:"rate,omitempty"`
	// Busy is the median round trip of small datagrams meanwhile, Longest the longest one, in
	// microseconds, and Lost the number of those without a response of Sent.
	Busy    int64 `json:"busy,omitempty"`
	Longest int64 `json:"longest,omitempty"`
	Sent    int   `json:"sent,omitempty"`
	Lost    int   `json:"lost,omitempty"`
}

// Bounds of a stream: its duration in seconds, less than the pod that receives it allows for one
// request, and the number of streams.
const (
	MaxStreamFor = 50
	MaxStreams   = 16
)

const (
	// patience is the default of Request.Patience: agents need seconds to learn the prefix
	// of a new pod if the network plugin doesn't assign it beforehand.
	patience = 20 * time.Second
	// streamFor is the default duration of the stream in seconds, busySpacing the interval of
	// datagrams meanwhile, and busyWait how long each waits for its response.
	streamFor   = 2
	busySpacing = 20 * time.Millisecond
	busyWait    = time.Second
	// smallest is the size of a small datagram in bytes.
	smallest = 32
	// mostNamed is the maximum number of reported addresses of a name.
	mostNamed = 4
	// burstOf are the number and the size in bytes of a burst's datagrams, burstSpacing the
	// interval between them.
	burstOf, burstSize = 1000, 1000
	burstSpacing       = time.Millisecond
)

// Encode returns the result as JSON of at most maxResult bytes.
func (r *Result) Encode() ([]byte, error) {
	encoded, err := json.Marshal(r)
	for size := longest; err == nil && len(encoded) > maxResult && size > 10; size /= 2 {
		for i := range r.Connections {
			r.Connections[i].Error, r.Connections[i].Datagrams = cut(r.Connections[i].Error, size), cut(r.Connections[i].Datagrams, size)
		}
		for i := range r.Services {
			r.Services[i].Name, r.Services[i].DNS = cut(r.Services[i].Name, size), cut(r.Services[i].DNS, size)
			for address, err := range r.Services[i].Failed {
				r.Services[i].Failed[address] = cut(err, size)
			}
		}
		for url, err := range r.Servers {
			r.Servers[url] = cut(err, size)
		}
		for port, err := range r.Taken {
			r.Taken[port] = cut(err, size)
		}
		encoded, err = json.Marshal(r)
	}
	return encoded, err
}

// maxResult is the maximum length of a termination message in bytes.
const maxResult = 4096

// TryAll tries pods, asks services and sends a stream, as requested.
func TryAll(ctx context.Context, r Request, result *Result) {
	own, err := addresses(r)
	result.Connections, result.Services = make([]Try, len(r.Try)), make([]ServiceResult, len(r.Asks))
	limit := cmp.Or(time.Duration(r.Patience)*time.Second, patience)
	end := time.Now().Add(time.Duration(r.AskFor) * time.Second)
	var group sync.WaitGroup
	for i, address := range r.Try {
		group.Go(func() {
			if err != nil {
				result.Connections[i].Error = text(err)
				return
			}
			result.Connections[i] = try(ctx, address, own, limit)
		})
	}
	for i, service := range r.Asks {
		group.Go(func() {
			result.Services[i] = askService(ctx, service)
			result.Services[i].repeat(ctx, service, end)
		})
	}
	group.Wait()
	if r.Stream != "" {
		// After all other checks, and only to a pod that responded.
		if i := slices.Index(r.Try, r.Stream); i < 0 || result.Connections[i].Error != "" {
			result.Streamed = &Stream{Error: "not tried"}
			if i >= 0 {
				result.Streamed.Error += ": " + result.Connections[i].Error
			}
			return
		}
		result.Streamed = streams(ctx, r.Stream, time.Duration(min(cmp.Or(r.StreamFor, streamFor), MaxStreamFor))*time.Second, min(cmp.Or(r.Streams, 1), MaxStreams))
	}
}

func try(ctx context.Context, address string, own []string, limit time.Duration) Try {
	t := reach(ctx, address, own, limit)
	if t.Error+t.Datagrams != "" {
		t.Burst = burst(ctx, address)
	}
	return t
}

// burst sends datagrams to a pod that doesn't answer, and returns their bytes.
func burst(ctx context.Context, address string) (sent int) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", at(address))
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }() // no unsent data
	ticker := time.NewTicker(burstSpacing)
	defer ticker.Stop()
	for range burstOf {
		if n, err := conn.Write(make([]byte, burstSize)); err == nil { // Errors are those of earlier ones.
			sent += n
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return sent
		}
	}
	return sent
}

func reach(ctx context.Context, address string, own []string, limit time.Duration) Try {
	var t Try
	seen, err := until(ctx, limit, func(ctx context.Context) (string, error) { return whoAmI(ctx, address) })
	if err != nil {
		return Try{Error: text(err)}
	}
	if !slices.Contains(own, seen) {
		t.Seen = seen
	}
	conn, err := dialWhole(ctx, address)
	if err != nil {
		t.Datagrams = text(err)
		return t
	}
	defer func() { _ = conn.Close() }() // no unsent data
	var times []time.Duration
	for range 7 {
		if rtt, err := echo(conn.UDPConn, smallest, time.Second); err == nil {
			times = append(times, rtt)
		}
	}
	if len(times) == 0 {
		t.Datagrams = "no answer to small datagrams"
		return t
	}
	slices.Sort(times)
	t.RTT = max(1, times[len(times)/2].Microseconds())
	t.MTU, t.Carries = measure(conn.header, conn.mtu, func(size int, times int) bool {
		for range times {
			if _, err := echo(conn.UDPConn, size, 700*time.Millisecond); err == nil {
				return true
			}
		}
		return false
	})
	return t
}

// measure measures the MTU of a path. believed returns the kernel's path MTU, which the
// kernel lowers on ICMP errors; carries reports whether a datagram of a size is echoed.
func measure(header int, believed func() int, carries func(size, times int) bool) (mtu, largest int) {
	mtu = believed()
	for range 5 {
		if carries(mtu-header, 4) {
			return mtu, mtu
		}
		corrected := believed()
		if corrected >= mtu {
			break
		}
		mtu = corrected
	}
	fits, lost := smallest+header, mtu
	for lost-fits > 1 {
		middle := (fits + lost) / 2
		if carries(middle-header, 2) {
			fits = middle
		} else {
			lost = middle
		}
	}
	return mtu, fits
}

// until repeats do until it succeeds or the limit is over. An attempt that the limit cuts off
// doesn't hide the error of the one before.
func until(ctx context.Context, limit time.Duration, do func(context.Context) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	end, _ := ctx.Deadline()
	var last error
	for {
		once, stop := context.WithTimeout(ctx, 3*time.Second)
		answer, err := do(once)
		stop()
		if err == nil {
			return answer, nil
		}
		// A connection's own deadline may be noticed before that of ctx.
		if last == nil || ctx.Err() == nil && time.Now().Before(end) {
			last = err
		}
		select {
		case <-ctx.Done():
			return "", last
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// get makes a request to a pod, and returns the beginning of the response.
func get(ctx context.Context, method, address, path string, body io.Reader) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+at(address)+path, body)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // Only read.
	answer, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("response %s", response.Status)
	}
	return strings.TrimSpace(string(answer)), err
}

func at(address string) string { return net.JoinHostPort(address, strconv.Itoa(Port)) }

// whoAmI returns the source address that a pod sees of this one.
func whoAmI(ctx context.Context, address string) (string, error) {
	seen, err := get(ctx, http.MethodGet, address, "/seen", http.NoBody)
	if err != nil {
		return "", err
	}
	addr, err := netip.ParseAddr(seen)
	if err != nil {
		return "", errors.New("its response is no address")
	}
	return addr.WithZone("").String(), nil
}

// zeros is a reader of zeros until a time.
type zeros struct{ end time.Time }

func (z zeros) Read(p []byte) (int, error) {
	if time.Now().After(z.end) {
		return 0, io.EOF
	}
	clear(p)
	return len(p), nil
}

// streams sends so many streams at the same time, and small datagrams beside them.
func streams(ctx context.Context, address string, duration time.Duration, number int) *Stream {
	rates, errs := make([]float64, number), make([]error, number)
	var streaming sync.WaitGroup
	for i := range number {
		streaming.Go(func() { rates[i], errs[i] = stream(ctx, address, duration) })
	}
	found := &Stream{}
	roundTrips(ctx, address, duration, found)
	streaming.Wait()
	for _, rate := range rates {
		found.Rate += rate
	}
	found.Error = text(errors.Join(errs...))
	return found
}

func stream(ctx context.Context, address string, duration time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+10*time.Second)
	defer cancel()
	began := time.Now()
	answer, err := get(ctx, http.MethodPost, address, "/stream", zeros{began.Add(duration)})
	if err != nil {
		return 0, err
	}
	received, err := strconv.ParseInt(answer, 10, 64)
	return float64(received) * 8 / time.Since(began).Seconds(), err
}

// roundTrips measures the round trips of small datagrams for a while.
func roundTrips(ctx context.Context, address string, duration time.Duration, found *Stream) {
	conn, err := dialWhole(ctx, address)
	if err != nil {
		return // That datagrams fail is another test's result.
	}
	defer func() { _ = conn.Close() }() // no unsent data
	var took []time.Duration
	for end := time.Now().Add(duration); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(busySpacing) {
		found.Sent++
		rtt, err := echo(conn.UDPConn, smallest, busyWait)
		if err != nil {
			found.Lost++
			continue
		}
		took = append(took, rtt)
	}
	if len(took) > 0 {
		slices.Sort(took)
		found.Busy, found.Longest = took[len(took)/2].Microseconds(), took[len(took)-1].Microseconds()
	}
}

// echo sends a datagram and waits for the response: its number and its length.
func echo(conn *net.UDPConn, size int, wait time.Duration) (time.Duration, error) {
	began := time.Now()
	packet := make([]byte, size)
	_, _ = rand.Read(packet[:8]) // the number; never fails
	want := datagram(packet)
	if err := conn.SetDeadline(began.Add(wait)); err != nil {
		return 0, err
	}
	if _, err := conn.Write(packet); err != nil {
		return 0, err
	}
	answer := make([]byte, smallest)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return 0, err
		}
		if bytes.Equal(answer[:n], want) {
			return time.Since(began), nil
		}
	}
}

// datagram returns the response to a datagram, shorter than any request.
func datagram(packet []byte) []byte {
	return binary.BigEndian.AppendUint32(slices.Clone(packet[:8]), uint32(len(packet)))
}
