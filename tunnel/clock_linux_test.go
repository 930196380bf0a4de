package tunnel

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// A node whose clock is behind after a boot sends initiations with older timestamps than
// before, which peers refuse as replays (WireGuard whitepaper, section 5.1). The peers' own
// are accepted: once a peer has something to send, there is a session for both directions.
func TestClockThatIsBehindHeals(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, Userspace, backend)
		quiet := a.peerOf(0)
		quiet.Keepalive = 0 // It initiates when it has something to send.
		b.configure(t, quiet)
		private, err := loadKey(a.cfg.KeyPath, a.cfg.Name, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		// An initiation within 20 ms of the last accepted one is refused.
		takes := func(year int) {
			t.Helper()
			before, second := b.peer(t, a.key).RxBytes, 0
			polltest.Until(t, time.Minute, "an initiation to be taken", func() bool {
				second++
				send(t, a.ns, b.peerOf(0).Endpoint, initiationAt(t, private, b.key, time.Date(year, 1, 1, 0, 0, second, 0, time.UTC)))
				return b.peer(t, a.key).RxBytes > before
			})
		}
		// Before the boot a's clock was correct; now it is decades behind.
		takes(2061)

		a.configure(t, b.peerOf(0))
		for range 3 {
			polltest.Until(t, time.Minute, "an initiation", func() bool { return a.peer(t, b.key).TxBytes > 0 })
			a.nudge(t, b.key, NudgeReset)
		}
		// All earlier ones were refused.
		takes(2062)
		if p := a.peer(t, b.key); !p.LastHandshake.IsZero() {
			t.Fatalf("an old initiation was accepted: %+v", p)
		}

		// The two from before the boot had another source port.
		elsewhere := quiet
		elsewhere.Endpoint = netip.MustParseAddrPort("192.0.2.77:7")
		b.configure(t, elsewhere)
		b.configure(t, quiet)
		echo(t, dial(t, b, a, 0), 1000)
		echo(t, dial(t, a, b, 0), 1000)
	})
}

// initiationAt returns the initiation that a node would send at that time, with the names of
// the WireGuard whitepaper, section 5.4.2.
func initiationAt(t *testing.T, from PrivateKey, to Key, at time.Time) []byte {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	mine := from.reveal()
	static, err := ecdh.X25519().NewPrivateKey(mine[:])
	fail(err)
	theirs, err := ecdh.X25519().NewPublicKey(to[:])
	fail(err)
	ephemeral, err := ecdh.X25519().GenerateKey(rand.Reader)
	fail(err)

	chain := blake2s.Sum256([]byte(device.NoiseConstruction))
	hash := chain
	mix := func(data []byte) { hash = blake2s.Sum256(append(hash[:], data...)) }
	mix([]byte(device.WGIdentifier))
	mix(to[:])
	var key [blake2s.Size]byte
	seal := func(plain []byte) []byte {
		aead, err := chacha20poly1305.New(key[:])
		fail(err)
		sealed := aead.Seal(nil, make([]byte, chacha20poly1305.NonceSize), plain, hash[:])
		mix(sealed)
		return sealed
	}
	agree := func(k *ecdh.PrivateKey) {
		secret, err := k.ECDH(theirs)
		fail(err)
		device.KDF2(&chain, &key, chain[:], secret)
	}

	var message device.MessageInitiation
	message.Type, message.Sender = device.MessageInitiationType, 1
	copy(message.Ephemeral[:], ephemeral.PublicKey().Bytes())
	mix(message.Ephemeral[:])
	device.KDF1(&chain, chain[:], message.Ephemeral[:])
	agree(ephemeral)
	copy(message.Static[:], seal(static.PublicKey().Bytes()))
	agree(static)
	// TAI64N: seconds since 1970 past 2^62 and 10 leap seconds, nanoseconds.
	var stamp [12]byte
	binary.BigEndian.PutUint64(stamp[:], 1<<62+10+uint64(at.Unix()))
	copy(message.Timestamp[:], seal(stamp[:]))

	var packet bytes.Buffer
	fail(binary.Write(&packet, binary.LittleEndian, message))
	var macs device.CookieGenerator
	macs.Init(device.NoisePublicKey(to))
	macs.AddMacs(packet.Bytes())
	return packet.Bytes()
}

// send sends one packet from a namespace.
func send(t *testing.T, from *nstest.Namespace, to netip.AddrPort, packet []byte) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(packet)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
