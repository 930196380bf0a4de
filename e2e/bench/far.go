package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// farMode is the argument with which this program simulates the nodes of a remote, as
// "far COUNT AGENT-KEY RATE". Each node has a WireGuard device and answers echo requests.
// Together they send the agent RATE echo requests a second, until SIGUSR1.
const farMode = "far"

// farPort is the listen port of the first node; the others use the ports that follow.
const farPort = 20000

// farKey returns the private key of a node, which is not secret.
func farKey(i int) wgtypes.Key {
	key := wgtypes.Key(sha256.Sum256([]byte("a node of a benchmark " + strconv.Itoa(i))))
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}

func far(args []string) error {
	if len(args) != 3 {
		return errors.New("far: COUNT AGENT-KEY RATE")
	}
	count, countErr := strconv.Atoi(args[0])
	agent, keyErr := wgtypes.ParseKey(args[1])
	rate, rateErr := strconv.Atoi(args[2])
	if err := errors.Join(countErr, keyErr, rateErr); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	quiet := make(chan os.Signal, 1)
	signal.Notify(quiet, syscall.SIGUSR1)
	to := tunnel.LinkLocal(tunnel.Key(agent))
	hosts := make([]*farHost, count)
	for i := range hosts {
		h, err := newFarHost(i, agent)
		if err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
		hosts[i] = h // It ends with the process.
	}
	fmt.Println("listening")
	const tick = 10 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	next, owed := 0, 0.0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-quiet:
			rate = 0
		case <-ticker.C:
			for owed += float64(rate) * tick.Seconds(); owed >= 1; owed-- {
				hosts[next%count].ask(to)
				next++
			}
		}
	}
}

// farHost is one node: the tun.Device of its WireGuard device, which answers what comes
// out of the tunnel.
type farHost struct {
	device *device.Device
	self   netip.Addr
	known  atomic.Bool // the agent has spoken
	out    chan []byte
	events chan tun.Event
}

func newFarHost(i int, agent wgtypes.Key) (*farHost, error) {
	key := farKey(i)
	h := &farHost{
		self: tunnel.LinkLocal(tunnel.Key(key.PublicKey())),
		out:  make(chan []byte, 16), events: make(chan tun.Event, 1),
	}
	h.device = device.NewDevice(h, &farBind{port: farPort + i}, device.NewLogger(device.LogLevelSilent, ""))
	setup := fmt.Sprintf("private_key=%s\npublic_key=%s\npersistent_keepalive_interval=25\nallowed_ip=::/0\nallowed_ip=0.0.0.0/0\n",
		hex.EncodeToString(key[:]), hex.EncodeToString(agent[:]))
	return h, errors.Join(h.device.IpcSet(setup), h.device.Up())
}

// Of an IPv6 packet (RFC 8200, section 3) with an ICMPv6 echo (RFC 4443, section 4).
const (
	ipv6Length  = 40
	echoLength  = 8
	icmpv6      = 58
	echoRequest = 128
	echoReply   = 129
)

// ask sends an echo request.
func (h *farHost) ask(to netip.Addr) {
	if !h.known.Load() {
		return
	}
	const payload = 9
	p := make([]byte, ipv6Length+echoLength+payload)
	p[0] = 6 << 4
	binary.BigEndian.PutUint16(p[4:], echoLength+payload)
	p[6], p[7] = icmpv6, 64
	from, dst := h.self.As16(), to.As16()
	copy(p[8:], from[:])
	copy(p[24:], dst[:])
	p[ipv6Length] = echoRequest
	sum := uint32(icmpv6 + echoLength + payload)
	for i := 8; i < len(p); i += 2 {
		sum += uint32(p[i]) << 8
		if i+1 < len(p) {
			sum += uint32(p[i+1])
		}
	}
	binary.BigEndian.PutUint16(p[ipv6Length+2:], ^fold(sum))
	h.send(p)
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func (h *farHost) send(p []byte) {
	select {
	case h.out <- p:
	default: // As a full queue of a kernel.
	}
}

// Write implements tun.Device: it is given what came out of the tunnel.
func (h *farHost) Write(packets [][]byte, offset int) (int, error) {
	h.known.Store(true)
	for _, in := range packets {
		in = in[offset:]
		if len(in) < ipv6Length+echoLength || in[0]>>4 != 6 || in[6] != icmpv6 || in[ipv6Length] != echoRequest {
			continue
		}
		p := append([]byte(nil), in...)
		copy(p[8:24], in[24:40])
		copy(p[24:40], in[8:24])
		p[ipv6Length] = echoReply
		sum := p[ipv6Length+2:]
		binary.BigEndian.PutUint16(sum, ^fold(uint32(^binary.BigEndian.Uint16(sum))+(echoReply-echoRequest)<<8))
		h.send(p)
	}
	return len(packets), nil
}

// Read implements tun.Device.
func (h *farHost) Read(packets [][]byte, sizes []int, offset int) (int, error) {
	p, ok := <-h.out
	if !ok {
		return 0, os.ErrClosed
	}
	sizes[0] = copy(packets[0][offset:], p)
	return 1, nil
}

// What follows completes tun.Device.

func (h *farHost) File() *os.File           { return nil }
func (h *farHost) MTU() (int, error)        { return device.DefaultMTU, nil }
func (h *farHost) Name() (string, error)    { return farMode, nil }
func (h *farHost) Events() <-chan tun.Event { return h.events }
func (h *farHost) BatchSize() int           { return 1 }

// Close ends the events; Read isn't waited for, as the process ends.
func (h *farHost) Close() error {
	close(h.events)
	return nil
}

// farBind is a conn.Bind of one socket without batches: thousands of them fit into a
// process.
type farBind struct {
	port   int
	socket *net.UDPConn
}

// farEndpoint is an endpoint that answers.
type farEndpoint struct{ netip.AddrPort }

func (farEndpoint) ClearSrc()             {}
func (farEndpoint) SrcToString() string   { return "" }
func (farEndpoint) SrcIP() netip.Addr     { return netip.Addr{} }
func (e farEndpoint) DstToString() string { return e.String() }
func (e farEndpoint) DstIP() netip.Addr   { return e.Addr() }
func (e farEndpoint) DstToBytes() []byte  { b, _ := e.MarshalBinary(); return b }

// Open implements conn.Bind.
func (b *farBind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{Port: b.port})
	if err != nil {
		return nil, 0, err
	}
	b.socket = socket
	return []conn.ReceiveFunc{func(packets [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		n, from, err := socket.ReadFromUDPAddrPort(packets[0])
		if err != nil {
			return 0, err
		}
		sizes[0], eps[0] = n, farEndpoint{from}
		return 1, nil
	}}, uint16(b.port), nil
}

// Send implements conn.Bind.
func (b *farBind) Send(packets [][]byte, to conn.Endpoint) error {
	for _, p := range packets {
		if _, err := b.socket.WriteToUDPAddrPort(p, to.(farEndpoint).AddrPort); err != nil {
			return err
		}
	}
	return nil
}

// Close implements conn.Bind.
func (b *farBind) Close() error {
	if b.socket == nil {
		return nil
	}
	return b.socket.Close()
}

// ParseEndpoint implements conn.Bind.
func (b *farBind) ParseEndpoint(s string) (conn.Endpoint, error) {
	at, err := netip.ParseAddrPort(s)
	return farEndpoint{at}, err
}

// SetMark implements conn.Bind.
func (b *farBind) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (b *farBind) BatchSize() int { return 1 }
