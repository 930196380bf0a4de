package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/ecdh"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// key is one of WireGuard's: private, public or preshared.
type key [32]byte

func parseKey[T string | []byte](text T) (k key, err error) {
	if len(text) != hex.EncodedLen(len(k)) {
		return k, errors.New("not a key")
	}
	_, err = hex.Decode(k[:], []byte(text))
	if err != nil {
		return k, errors.New("not a key") // The library's error may show a part of it.
	}
	return k, nil
}

// model is the configuration that wireguard-go has after the same "set" requests
// (https://www.wireguard.com/xplatform/), with the endpoints and handshake times of
// peers that observe read last. It isn't safe for concurrent use.
type model struct {
	private, public key
	port            uint16
	mark            uint32
	peers           map[key]*peer
	owner           map[netip.Prefix]key // of each allowed IP
}

type peer struct {
	preshared key
	allowed   []netip.Prefix
	endpoint  string
	keepalive uint16
	handshake time.Time // of the last handshake; zero: none
}

func newModel() *model {
	return &model{peers: make(map[key]*peer), owner: make(map[netip.Prefix]key)}
}

// set applies a "set" request that wireguard-go has carried out, without its first line.
// A request that wireguard-go refuses may have been applied in part: then the model must
// be read again, see read.
func (m *model) set(request io.Reader) error {
	return eachLine(request, m.setLine(new(section)))
}

func (m *model) setLine(at *section) func(name, line []byte) error {
	return func(name, line []byte) error {
		value := string(line)
		switch string(name) {
		case "private_key":
			return m.setPrivate(value)
		case "listen_port":
			port, err := strconv.ParseUint(value, 10, 16)
			m.port = uint16(port)
			return err
		case "fwmark":
			mark, err := strconv.ParseUint(value, 10, 32)
			m.mark = uint32(mark)
			return err
		case "replace_peers":
			clear(m.peers)
			clear(m.owner)
			return nil
		case "public_key":
			k, err := parseKey(value)
			*at = section{key: k}
			if k != m.public {
				at.peer, at.created = m.peers[k], m.peers[k] == nil
				if at.created {
					at.peer = new(peer)
					m.peers[k] = at.peer
				}
			}
			return err
		}
		return m.setPeer(at, string(name), value)
	}
}

// section is the part of a request about one peer.
type section struct {
	key     key
	peer    *peer // nil: the following lines are ignored
	created bool  // by this section
}

func (m *model) setPeer(at *section, name, value string) (err error) {
	if at.peer == nil {
		return nil
	}
	switch name {
	case "update_only":
		if at.created {
			m.remove(at.key)
			at.peer = nil
		}
	case "remove":
		m.remove(at.key)
		at.peer = nil
	case "preshared_key":
		at.peer.preshared, err = parseKey(value)
	case "endpoint":
		at.peer.endpoint = value
	case "persistent_keepalive_interval":
		var seconds uint64
		seconds, err = strconv.ParseUint(value, 10, 16)
		at.peer.keepalive = uint16(seconds)
	case "last_handshake_time_sec":
		var seconds int64
		if seconds, err = strconv.ParseInt(value, 10, 64); seconds > 0 {
			at.peer.handshake = time.Unix(seconds, 0)
		}
	case "replace_allowed_ips":
		m.disown(at.key)
	case "allowed_ip":
		return m.allow(at.key, value)
	}
	return err
}

// setPrivate sets the private key and, as wireguard-go does, removes the peer whose public
// key belongs to it.
func (m *model) setPrivate(value string) error {
	private, err := parseKey(value)
	if err != nil {
		return err
	}
	if private != (key{}) {
		private[0] &= 248
		private[31] = private[31]&127 | 64
	}
	if private == m.private {
		return nil
	}
	m.private = private
	secret, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return errors.New("derive public key")
	}
	m.public = key(secret.PublicKey().Bytes())
	m.remove(m.public)
	return nil
}

func (m *model) allow(peer key, value string) error {
	text, removed := strings.CutPrefix(value, "-")
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return err
	}
	prefix = prefix.Masked()
	owner, owned := m.owner[prefix]
	if owned && (owner == peer) == removed {
		m.peers[owner].allowed = slices.DeleteFunc(m.peers[owner].allowed, func(p netip.Prefix) bool { return p == prefix })
		delete(m.owner, prefix)
		owned = false
	}
	if !removed && !owned {
		m.peers[peer].allowed = append(m.peers[peer].allowed, prefix)
		m.owner[prefix] = peer
	}
	return nil
}

func (m *model) remove(peer key) {
	m.disown(peer)
	delete(m.peers, peer)
}

func (m *model) disown(peer key) {
	p := m.peers[peer]
	if p == nil {
		return
	}
	for _, prefix := range p.allowed {
		delete(m.owner, prefix)
	}
	p.allowed = nil
}

// read replaces the model by wireguard-go's answer to a "get" request.
func (m *model) read(answer io.Reader) error {
	fresh := newModel()
	err := eachAnswered(answer, fresh.setLine(new(section)))
	if err == nil {
		*m = *fresh
	}
	return err
}

// observe updates endpoints and handshake times of peers from the answer to a "get"
// request.
func (m *model) observe(answer io.Reader) error {
	var p *peer
	return eachAnswered(answer, func(name, value []byte) error {
		switch string(name) {
		case "public_key":
			k, err := parseKey(value)
			p = m.peers[k]
			return err
		case "endpoint":
			if p != nil && p.endpoint != string(value) {
				p.endpoint = string(value)
			}
		case "last_handshake_time_sec":
			seconds, err := strconv.ParseInt(string(value), 10, 64)
			if p != nil && seconds > 0 {
				p.handshake = time.Unix(seconds, 0)
			}
			return err
		}
		return nil
	})
}

// request returns the "set" request that configures a new device like the model, on that
// port, without keepalive intervals: a device sends a keepalive at once to each peer that
// gets an interval.
func (m *model) request(port uint16) []byte {
	var b bytes.Buffer
	b.WriteString("set=1\n")
	m.write(&b, port, false)
	b.WriteByte('\n')
	return b.Bytes()
}

// text returns the model as the answer to a "get" request, see read.
func (m *model) text() []byte {
	var b bytes.Buffer
	m.write(&b, m.port, true)
	b.WriteString(answerOK)
	return b.Bytes()
}

// write writes the model: what a new device is configured with, or all of it.
func (m *model) write(b *bytes.Buffer, port uint16, all bool) {
	if m.private != (key{}) {
		fmt.Fprintf(b, "private_key=%x\n", m.private[:])
	}
	fmt.Fprintf(b, "listen_port=%d\nfwmark=%d\n", port, m.mark)
	if !all {
		b.WriteString("replace_peers=true\n")
	}
	for k, p := range m.peers {
		fmt.Fprintf(b, "public_key=%x\n", k[:])
		if p.preshared != (key{}) {
			fmt.Fprintf(b, "preshared_key=%x\n", p.preshared[:])
		}
		if p.endpoint != "" {
			fmt.Fprintf(b, "endpoint=%s\n", p.endpoint)
		}
		if all && !p.handshake.IsZero() {
			fmt.Fprintf(b, "last_handshake_time_sec=%d\n", p.handshake.Unix())
		}
		if all {
			fmt.Fprintf(b, "persistent_keepalive_interval=%d\n", p.keepalive)
		}
		for _, prefix := range p.allowed {
			fmt.Fprintf(b, "allowed_ip=%s\n", prefix)
		}
	}
}

// keepalives returns the request that sets the keepalive intervals of some peers, nil when
// they have none. For peers without a handshake it also sets the endpoint, so that
// [window.Answer] discards the keepalive that would wait for a session.
func (m *model) keepalives(keys []key) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		if p := m.peers[k]; p != nil && p.keepalive != 0 {
			fmt.Fprintf(&b, "public_key=%x\nupdate_only=true\n", k[:])
			if p.handshake.IsZero() && p.endpoint != "" {
				fmt.Fprintf(&b, "endpoint=%s\n", p.endpoint)
			}
			fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", p.keepalive)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return fmt.Appendf(nil, "set=1\n%s\n", b.Bytes())
}

// rejectAfter is how long a session lasts (WireGuard whitepaper, section 6.1).
const rejectAfter = 180 * time.Second

// recent returns the peers, ordered from the latest handshake, and how many of them had a
// session at that time.
func (m *model) recent(now time.Time) (keys []key, live int) {
	keys = slices.SortedFunc(maps.Keys(m.peers), func(a, b key) int {
		return cmp.Or(m.peers[b].handshake.Compare(m.peers[a].handshake), bytes.Compare(a[:], b[:]))
	})
	live, _ = slices.BinarySearchFunc(keys, now.Add(-rejectAfter), func(k key, before time.Time) int {
		if m.peers[k].handshake.After(before) {
			return -1
		}
		return 1
	})
	return keys, live
}

// eachLine calls f for the lines name=value of a request or an answer, up to the
// empty line. The arguments of f are valid until it returns: the answer about thousands
// of peers is read every few seconds, without an allocation per line.
func eachLine(r io.Reader, f func(name, value []byte) error) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() && len(lines.Bytes()) > 0 {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte("="))
		if err := f(name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return lines.Err()
}

// eachAnswered is eachLine for an answer. It returns an error if the answer reports one,
// or is truncated, as that of a process that ends.
func eachAnswered(r io.Reader, f func(name, value []byte) error) error {
	whole := false
	err := eachLine(r, func(name, value []byte) error {
		if string(name) != "errno" {
			return f(name, value)
		}
		if whole = true; string(value) != "0" {
			return errors.New(string(value))
		}
		return nil
	})
	if err == nil && !whole {
		return io.ErrUnexpectedEOF
	}
	return err
}
