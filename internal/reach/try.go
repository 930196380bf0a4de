package reach

import (
	"cmp"
	"context"
	"crypto/hmac"
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

// Try is what became of asking one pod of another cluster.
type Try struct {
	// Error says why it didn't answer over TCP; empty: it did.
	Error string `json:"error,omitempty"`
	// Seen is the address that it saw, where that isn't one of the asking pod's.
	Seen string `json:"seen,omitempty"`
	// Datagrams says why it didn't answer over UDP, where it did over TCP; the rest is
	// unknown then.
	Datagrams string `json:"datagrams,omitempty"`
	// RTT is the median time until a small datagram was answered, in microseconds.
	RTT int64 `json:"rtt,omitempty"`
	// MTU is what the kernel takes the path to carry, in bytes of IP packets, and Carries
	// what the largest that was answered had. Where the second is smaller, full-size
	// packets get lost without a word.
	MTU     int `json:"mtu,omitempty"`
	Carries int `json:"carries,omitempty"`
}

// Name is what a name was resolved to.
type Name struct {
	Error     string   `json:"error,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// Stream is what a TCP stream carried, in bits a second.
type Stream struct {
	Error string  `json:"error,omitempty"`
	Rate  float64 `json:"rate,omitempty"`
}

const (
	// patience is how long an answer may take to come for the first time, unless the
	// request says so: agents learn of a new pod's prefix within seconds where no plugin
	// says so beforehand.
	patience = 20 * time.Second
	// streamFor is how long the stream is sent.
	streamFor = 2 * time.Second
	// smallest is the size of a small datagram.
	smallest = 32
	// mostNamed is how many addresses are encoded of a name.
	mostNamed = 4
)

// Tell returns the result as text that a termination message has room for.
func (r *Result) Encode() ([]byte, error) {
	encoded, err := json.Marshal(r)
	// Of hundreds of errors each says less.
	for room := longest; err == nil && len(encoded) > maxResult && room > 10; room /= 2 {
		for i := range r.Tried {
			r.Tried[i].Error, r.Tried[i].Datagrams = cut(r.Tried[i].Error, room), cut(r.Tried[i].Datagrams, room)
		}
		for i := range r.Named {
			r.Named[i].Error = cut(r.Named[i].Error, room)
		}
		encoded, err = json.Marshal(r)
	}
	return encoded, err
}

// maxResult is how long a termination message may be.
const maxResult = 4096

// TryAll asks pods, resolves names and sends a stream, as the request says.
func TryAll(ctx context.Context, r Request, result *Result) {
	own, err := addresses(r)
	result.Tried, result.Named = make([]Try, len(r.Try)), make([]Name, len(r.Names))
	limit := cmp.Or(time.Duration(r.Patience)*time.Second, patience)
	var group sync.WaitGroup
	for i, address := range r.Try {
		group.Go(func() {
			if err != nil {
				result.Tried[i].Error = text(err)
				return
			}
			result.Tried[i] = r.Secret.try(ctx, address, own, limit)
		})
	}
	for i, name := range r.Names {
		group.Go(func() { result.Named[i] = resolve(ctx, name, limit) })
	}
	group.Wait()
	if r.Stream != "" {
		// When nothing else is on the way, and to nobody that hasn't answered.
		if i := slices.Index(r.Try, r.Stream); i < 0 || result.Tried[i].Error != "" {
			result.Streamed = &Stream{Error: "not tried"}
			if i >= 0 {
				result.Streamed.Error += ": " + result.Tried[i].Error
			}
			return
		}
		rate, err := r.Secret.stream(ctx, r.Stream)
		result.Streamed = &Stream{Error: text(err), Rate: rate}
	}
}

func (s Secret) try(ctx context.Context, address string, own []string, limit time.Duration) Try {
	var t Try
	seen, err := until(ctx, limit, func(ctx context.Context) (string, error) { return s.whoAmI(ctx, address) })
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
	defer func() { _ = conn.Close() }() // Nothing is left to be sent.
	var times []time.Duration
	for range 7 {
		if rtt, err := s.echo(conn.UDPConn, smallest, time.Second); err == nil {
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
			if _, err := s.echo(conn.UDPConn, size, 700*time.Millisecond); err == nil {
				return true
			}
		}
		return false
	})
	return t
}

// measure finds out what a path carries. believed is what the kernel takes it to carry,
// which it corrects when a packet comes back as too large; carries tells whether a
// datagram of a size is answered.
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

// until does something again until it is well, or its time is over.
func until(ctx context.Context, limit time.Duration, do func(context.Context) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		once, stop := context.WithTimeout(ctx, 3*time.Second)
		answer, err := do(once)
		stop()
		if err == nil {
			return answer, nil
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// get asks a pod, which proves its answer.
func (s Secret) get(ctx context.Context, method, address, path string, body io.Reader) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+at(address)+path, body)
	if err != nil {
		return "", err
	}
	nonce := rand.Text()
	request.Header.Set(nonceHeader, nonce)
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // Only read.
	answer, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %s", response.Status)
	}
	if err == nil && !s.proven(response.Header, path, nonce, plain(address), string(answer)) {
		err = errStranger
	}
	return strings.TrimSpace(string(answer)), err
}

// answer answers such a request.
func (s Secret) answer(w http.ResponseWriter, r *http.Request, what any) {
	text := fmt.Sprintln(what)
	s.prove(w.Header(), r.URL.Path, r.Header.Get(nonceHeader), local(r), text)
	_, _ = io.WriteString(w, text) // Who has gone needs no answer.
}

func at(address string) string { return net.JoinHostPort(address, strconv.Itoa(MeetPort)) }

// whoAmI asks a pod at which address it sees this one.
func (s Secret) whoAmI(ctx context.Context, address string) (string, error) {
	seen, err := s.get(ctx, http.MethodGet, address, "/seen", http.NoBody)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(seen); err != nil {
		return "", errStranger
	}
	return seen, nil
}

// zeros is a stream of them that ends at a time.
type zeros struct{ end time.Time }

func (z zeros) Read(p []byte) (int, error) {
	if time.Now().After(z.end) {
		return 0, io.EOF
	}
	clear(p)
	return len(p), nil
}

func (s Secret) stream(ctx context.Context, address string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, streamFor+10*time.Second)
	defer cancel()
	began := time.Now()
	answer, err := s.get(ctx, http.MethodPost, address, "/stream", zeros{began.Add(streamFor)})
	if err != nil {
		return 0, err
	}
	received, err := strconv.ParseInt(answer, 10, 64)
	return float64(received) * 8 / time.Since(began).Seconds(), err
}

func resolve(ctx context.Context, name string, limit time.Duration) Name {
	// As it is: no search list.
	answer, err := until(ctx, limit, func(ctx context.Context) (string, error) {
		found, err := net.DefaultResolver.LookupHost(ctx, strings.TrimSuffix(name, ".")+".")
		slices.Sort(found)
		return strings.Join(found[:min(len(found), mostNamed)], " "), err
	})
	return Name{Error: text(err), Addresses: strings.Fields(answer)}
}

// echo sends a datagram and waits for its answer: its number, how long it was, and a proof.
func (s Secret) echo(conn *net.UDPConn, size int, wait time.Duration) (time.Duration, error) {
	began := time.Now()
	packet := make([]byte, size)
	_, _ = rand.Read(packet[:8]) // Its number; it never fails.
	want := s.datagram(packet)
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
		if hmac.Equal(answer[:n], want) {
			return time.Since(began), nil
		}
	}
}

// datagram is the answer to one, shorter than any that is answered.
func (s Secret) datagram(packet []byte) []byte {
	answer := binary.BigEndian.AppendUint32(slices.Clone(packet[:8]), uint32(len(packet)))
	if s != "" {
		answer = append(answer, s.sum("datagram", string(answer))...)
	}
	return answer
}

// Serve has the pod answer what other pods try, until its time is over.
func Serve(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.ServeFor)*time.Second)
	defer cancel()
	host := ""
	if len(r.MeetFrom) > 0 {
		host = r.MeetFrom[0]
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at(host))
	if err != nil {
		return err
	}
	packets, err := new(net.ListenConfig).ListenPacket(ctx, "udp", at(host))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	secret := r.Secret
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		secret.answer(w, r, from.Addr().Unmap().WithZone(""))
	})
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body) // What came counts.
		secret.answer(w, r, n)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) }) // Ends when it is closed.
	group.Go(func() { secret.answerDatagrams(packets) })
	<-ctx.Done()
	err = errors.Join(server.Close(), packets.Close())
	group.Wait()
	return err
}

func (s Secret) answerDatagrams(packets net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < smallest {
			continue
		}
		_, _ = packets.WriteTo(s.datagram(buffer[:n]), from) // It is asked again.
	}
}
