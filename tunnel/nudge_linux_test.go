package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// A peer whose initiation was lost is sent another one after a reset, without waiting for
// WireGuard's own retries, and a peer with a session can be sent a keepalive at any time.
func TestNudge(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		unreachable := b.peerOf(0)
		unreachable.Endpoint = netip.MustParseAddrPort("192.0.2.77:7")
		a.configure(t, unreachable)
		passive := a.peerOf(0)
		passive.Keepalive = 0 // b never initiates.
		b.configure(t, passive)
		a.configure(t, b.peerOf(0)) // Too late: the initiation was sent to the wrong endpoint.

		if got := b.nudge(t, a.key, NudgeKeepalive); got != (Nudges{}) {
			t.Errorf("%+v, want nothing to be sent to a peer without keepalives", got)
		}
		if got := a.nudge(t, b.key, NudgeReset); got != (Nudges{Resets: 1}) {
			t.Errorf("%+v, want one reset", got)
		}
		polltest.Until(t, time.Minute, "a session", func() bool { return !a.peer(t, b.key).LastHandshake.IsZero() })
		polltest.Until(t, time.Minute, "its confirmation", func() bool { return !b.peer(t, a.key).LastHandshake.IsZero() })
		for range 3 {
			heard, before := b.peer(t, a.key).RxBytes, a.peer(t, b.key)
			if got := a.nudge(t, b.key, NudgeKeepalive); got != (Nudges{Keepalives: 1}) {
				t.Errorf("%+v, want one session to be confirmed", got)
			}
			polltest.Until(t, time.Minute, "a keepalive", func() bool { return b.peer(t, a.key).RxBytes > heard })
			after := a.peer(t, b.key)
			if after.LastHandshake != before.LastHandshake || after.RxBytes < before.RxBytes || after.Keepalive != before.Keepalive {
				t.Errorf("the session was touched: %+v, before %+v", after, before)
			}
		}
		passive.Endpoint = netip.AddrPort{} // By now b has learned a's endpoint.
		b.configure(t, passive)
		heard := a.peer(t, b.key).RxBytes
		if got := b.nudge(t, a.key, NudgeKeepalive); got != (Nudges{Keepalives: 1}) {
			t.Errorf("%+v, want a keepalive for a peer that has sent", got)
		}
		polltest.Until(t, time.Minute, "a keepalive of the responder", func() bool { return a.peer(t, b.key).RxBytes > heard })
		if got := b.peer(t, a.key); got.Keepalive != 0 || !got.Endpoint.IsValid() {
			t.Errorf("the peer was touched: %+v", got)
		}
		echo(t, dial(t, b, a, 0), 1000)
	})
}

// With the userspace backend, a handshake can be sent while the peer's session goes on.
func TestNudgeHandshake(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		a.configure(t, b.peerOf(0))
		b.configure(t, a.peerOf(0))
		conn := dial(t, a, b, 0)
		echo(t, conn, 100_000)
		before := a.peer(t, b.key)
		want := Nudges{Handshakes: 1}
		if backend == Kernel {
			want = Nudges{Resets: 1}
		}
		polltest.Until(t, time.Minute, "another handshake", func() bool {
			if got := a.nudge(t, b.key, NudgeHandshake); got != want {
				t.Fatalf("%+v, want %+v", got, want)
			}
			echo(t, conn, 1000)
			after := a.peer(t, b.key)
			if kept := after.RxBytes >= before.RxBytes && !after.LastHandshake.Before(before.LastHandshake); kept != (backend != Kernel) {
				t.Fatalf("%+v, before %+v", after, before)
			}
			return after.LastHandshake.After(before.LastHandshake)
		})
	})
}
