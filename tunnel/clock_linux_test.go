package tunnel

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// A node whose clock is behind after a boot is refused by peers that knew it: an
// initiation must have a later timestamp than the one before (section 5.4.2 of the
// whitepaper). It heals when a peer begins, which it does as soon as what it sends
// has had no answer for 15 s (KEEPALIVE_TIMEOUT and REKEY_TIMEOUT), and with
// nothing to send but keepalives when its session has ended after 180 s.
func TestAClockThatIsBehindHeals(t *testing.T) {
	if os.Getenv(kernelVariable) == "" {
		t.Skip("sets the clock of the machine; make test-kernel runs this in one of its own")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		meet(t, a, b, 0)
		echo(t, dial(t, a, b, 0), 1000)
		before := b.peer(t, a.key).LastHandshake

		// A boot: sessions, link and the right time are lost, the key isn't.
		a.kill()
		link := a.link(t)
		if err := a.ns.Do(link.remove); err != nil {
			t.Fatal(err)
		}
		setClock(t, time.Now().Add(-time.Hour))
		a.agent = startAgent(t, a.ns, a.cfg)
		if err := a.ns.Do(func() error { return a.routes(b) }); err != nil {
			t.Fatal(err)
		}
		a.configure(t, b.peerOf(0))
		polltest.Until(t, time.Minute, "an initiation to be sent", func() bool { return a.peer(t, b.key).TxBytes > 0 })
		if now := b.peer(t, a.key).LastHandshake; !now.Equal(before) {
			t.Fatalf("the peer took an initiation of the past: this shows nothing (%v, before %v)", now, before)
		}

		polltest.Until(t, 2*time.Minute, "the peer to begin", func() bool {
			err := b.ns.Do(func() error {
				conn, err := net.Dial("udp", netip.AddrPortFrom(a.pods[0], 9).String())
				if err != nil {
					return err
				}
				_, _ = conn.Write([]byte("anybody there?")) // Refused is an answer, too.
				return conn.Close()
			})
			if err != nil {
				t.Fatal(err)
			}
			return !a.peer(t, b.key).LastHandshake.IsZero()
		})
		echo(t, dial(t, a, b, 0), 1000)
		echo(t, dial(t, b, a, 0), 1000)
	})
}

// setClock sets the machine's clock until the test ends.
func setClock(t *testing.T, to time.Time) {
	t.Helper()
	from := time.Now()
	set := func(to time.Time) {
		tv := unix.NsecToTimeval(to.UnixNano())
		if err := unix.Settimeofday(&tv); err != nil {
			t.Fatal(err)
		}
	}
	set(to)
	// The difference of two readings is that of the monotonic clock.
	t.Cleanup(func() { set(time.Unix(0, from.UnixNano()).Add(time.Since(from))) })
}
