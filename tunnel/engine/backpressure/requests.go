package backpressure

import (
	"bytes"
	"net"

	"golang.zx2c4.com/wireguard/device"
)

// Answer serves UAPI requests on a connection until it ends.
//
// When a request sets a peer's endpoint and keepalive interval, wireguard-go sends a
// keepalive at once. It starts a handshake and stays staged, in a buffer of 64 KiB, until
// that is complete. Answer discards it, since wireguard-go sends another one then: with
// thousands of peers that don't answer, these buffers are hundreds of megabytes of live
// heap, and allow as much garbage. The peer's other staged packets are discarded with it:
// they are older than the endpoint, the interval or the peer.
func Answer(dev *device.Device, conn net.Conn) {
	dev.IpcHandle(&requests{Conn: conn, discard: func(peer device.NoisePublicKey) { flush(dev, peer) }})
}

// requests is a connection whose reader has executed the lines of a read by the time of its
// next read.
type requests struct {
	net.Conn
	discard func(device.NoisePublicKey)

	line        []byte                  // the incomplete last line
	peer        device.NoisePublicKey   // of the current section
	hasEndpoint bool                    // the section sets an endpoint
	pending     []device.NoisePublicKey // peers to which the lines read so far send keepalives
}

// Read implements [net.Conn]. The last peer's section may be incomplete.
func (r *requests) Read(p []byte) (int, error) {
	r.discardFirst(max(len(r.pending)-1, 0))
	n, err := r.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		r.line, rest = append(r.line, part...), after
		if ended {
			r.parse(r.line)
			r.line = r.line[:0]
		}
	}
	return n, err
}

// Write implements [net.Conn]. The response is written when the request has been executed.
func (r *requests) Write(p []byte) (int, error) {
	r.discardFirst(len(r.pending))
	return r.Conn.Write(p)
}

func (r *requests) discardFirst(n int) {
	for _, peer := range r.pending[:n] {
		r.discard(peer)
	}
	r.pending = append(r.pending[:0], r.pending[n:]...)
}

func (r *requests) parse(line []byte) {
	name, value, _ := bytes.Cut(line, []byte("="))
	switch string(name) {
	case "public_key":
		r.hasEndpoint = false
		if err := r.peer.FromHex(string(value)); err != nil {
			r.peer = device.NoisePublicKey{} // wireguard-go refuses the request.
		}
	case "endpoint":
		r.hasEndpoint = true
	case "persistent_keepalive_interval":
		if r.hasEndpoint && string(value) != "0" {
			r.pending = append(r.pending, r.peer)
		}
	}
}
