package resume

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Key is the public key of a peer.
type Key = device.NoisePublicKey

// peer is the state of a device's peer.
type peer struct {
	handshake time.Time // the last one; zero: none
	sent      uint64    // bytes
}

// peersOf returns the state of a device's peers.
func peersOf(d *device.Device) (map[Key]peer, error) {
	var text bytes.Buffer
	if err := d.IpcGetOperation(&text); err != nil {
		return nil, fmt.Errorf("read the device's peers: %w", err)
	}
	return parsePeers(text.Bytes())
}

// parsePeers parses the response to "get=1" of
// https://www.wireguard.com/xplatform/#configuration-protocol.
func parsePeers(text []byte) (map[Key]peer, error) {
	peers := make(map[Key]peer)
	var (
		key     Key
		p       peer
		inPeer  bool
		seconds int64
	)
	finish := func() {
		if inPeer {
			peers[key] = p
		}
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte("="))
		var err error
		switch string(name) {
		case "public_key":
			finish()
			inPeer, p = true, peer{}
			if n := hex.DecodedLen(len(value)); n != len(key) {
				err = fmt.Errorf("a key of %d bytes", n)
			} else {
				_, err = hex.Decode(key[:], value)
			}
		case "last_handshake_time_sec":
			seconds, err = strconv.ParseInt(string(value), 10, 64)
		case "last_handshake_time_nsec":
			var nanos int64
			if nanos, err = strconv.ParseInt(string(value), 10, 64); seconds != 0 || nanos != 0 {
				p.handshake = time.Unix(seconds, nanos)
			}
		case "tx_bytes":
			p.sent, err = strconv.ParseUint(string(value), 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("read the device's peers: %s: %w", name, err)
		}
	}
	finish()
	return peers, nil
}
