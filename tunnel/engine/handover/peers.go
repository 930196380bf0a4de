package handover

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Key is the public key of a peer.
type Key = device.NoisePublicKey

// peer is the state of a device's peer.
type peer struct {
	endpoint       string // empty: unknown
	handshake      time.Time
	sent, received uint64 // bytes
	keepalive      int    // persistent, in seconds
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
		case "endpoint":
			p.endpoint = string(value)
		case "last_handshake_time_sec":
			seconds, err = strconv.ParseInt(string(value), 10, 64)
		case "last_handshake_time_nsec":
			var nanos int64
			if nanos, err = strconv.ParseInt(string(value), 10, 64); seconds != 0 || nanos != 0 {
				p.handshake = time.Unix(seconds, nanos)
			}
		case "tx_bytes":
			p.sent, err = strconv.ParseUint(string(value), 10, 64)
		case "rx_bytes":
			p.received, err = strconv.ParseUint(string(value), 10, 64)
		case "persistent_keepalive_interval":
			p.keepalive, err = strconv.Atoi(string(value))
		}
		if err != nil {
			return nil, fmt.Errorf("read the device's peers: %s: %w", name, err)
		}
	}
	finish()
	return peers, nil
}

// live returns the peers with a session, those with the latest handshakes first.
func live(peers map[Key]peer, now time.Time) []Key {
	var keys []Key
	for key, p := range peers {
		if now.Sub(p.handshake) < device.RejectAfterTime {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(peers[b].handshake.Compare(peers[a].handshake), bytes.Compare(a[:], b[:]))
	})
	return keys
}

// setEndpoints sets the endpoints of existing peers.
func setEndpoints(d *device.Device, endpoints map[Key]string) error {
	var set strings.Builder
	for key, endpoint := range endpoints {
		fmt.Fprintf(&set, "public_key=%x\nupdate_only=true\nendpoint=%s\n", key[:], endpoint)
	}
	if err := d.IpcSet(set.String()); err != nil {
		return fmt.Errorf("set endpoints: %w", err)
	}
	return nil
}

// peerUpdate is what one engine reports about a peer.
type peerUpdate struct {
	key      Key
	heard    bool // the old engine has received a valid message lately, see hearing
	endpoint string
}

// maxUpdates is the size in bytes at which a message with updates is sent.
const maxUpdates = 32000

// appendUpdate appends an update to a message:
//
//	{ key, 32 bytes | heard, 1 | length of endpoint, 1 | endpoint, text }
func appendUpdate(message []byte, n peerUpdate) []byte {
	if len(n.endpoint) > 255 {
		n.endpoint = ""
	}
	heard := byte(0)
	if n.heard {
		heard = 1
	}
	message = append(message, n.key[:]...)
	message = append(message, heard, byte(len(n.endpoint)))
	return append(message, n.endpoint...)
}

// parseUpdates parses all updates of a message.
func parseUpdates(message []byte) (all []peerUpdate, err error) {
	const head = len(Key{}) + 2
	for len(message) > 0 {
		if len(message) < head || len(message) < head+int(message[head-1]) {
			return nil, fmt.Errorf("a message about peers is cut off")
		}
		end := head + int(message[head-1])
		all = append(all, peerUpdate{key: Key(message[:len(Key{})]), heard: message[head-2] != 0, endpoint: string(message[head:end])})
		message = message[end:]
	}
	return all, nil
}
