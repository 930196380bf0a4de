package window

import (
	"bytes"
	"net"

	"golang.zx2c4.com/wireguard/device"
)

// Answer answers UAPI requests that come on a connection, until it ends.
//
// A peer that is given an endpoint and an interval of keepalives is sent a keepalive at
// once, which begins a handshake and waits for its end in a buffer of 64 KiB. It isn't
// needed, since wireguard-go sends another one then, and is thrown away: with thousands of
// peers that don't answer these buffers are hundreds of megabytes which the garbage
// collector takes for alive, and lets as much garbage be. What else waits for that peer at
// this moment is thrown away, too: packets of the time in which it had no endpoint, or no
// interval, or wasn't there.
func Answer(dev *device.Device, conn net.Conn) {
	dev.IpcHandle(&requests{Conn: conn, discard: func(peer device.NoisePublicKey) { flush(dev, peer) }})
}

// requests is a connection whose reader tells by reading on that it has carried out what it
// read before.
type requests struct {
	net.Conn
	discard func(device.NoisePublicKey)

	line    []byte                  // as much as was read of it
	peer    device.NoisePublicKey   // that lines are about
	placed  bool                    // it was given an endpoint
	greeted []device.NoisePublicKey // that are sent keepalives, by what was read
}

// Read implements [net.Conn]. Of what was read before, the last peer may not be complete.
func (r *requests) Read(p []byte) (int, error) {
	r.discardAll(max(len(r.greeted)-1, 0))
	n, err := r.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		r.line, rest = append(r.line, part...), after
		if ended {
			r.see(r.line)
			r.line = r.line[:0]
		}
	}
	return n, err
}

// Write implements [net.Conn]. The answer comes when a request was carried out.
func (r *requests) Write(p []byte) (int, error) {
	r.discardAll(len(r.greeted))
	return r.Conn.Write(p)
}

func (r *requests) discardAll(n int) {
	for _, peer := range r.greeted[:n] {
		r.discard(peer)
	}
	r.greeted = append(r.greeted[:0], r.greeted[n:]...)
}

func (r *requests) see(line []byte) {
	name, value, _ := bytes.Cut(line, []byte("="))
	switch string(name) {
	case "public_key":
		r.placed = false
		if err := r.peer.FromHex(string(value)); err != nil {
			r.peer = device.NoisePublicKey{} // The request is refused.
		}
	case "endpoint":
		r.placed = true
	case "persistent_keepalive_interval":
		if r.placed && string(value) != "0" {
			r.greeted = append(r.greeted, r.peer)
		}
	}
}
