package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// Two sides whose first initiations are lost, as when each reaches the other
// before that knows it, needn't wait for WireGuard's own retries.
func TestRehandshakeAfterLostInitiations(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		if a.key.Compare(b.key) > 0 {
			a, b = b, a
		}
		nobody := b.peerOf(0)
		nobody.Endpoint = netip.MustParseAddrPort("192.0.2.77:7")
		a.configure(t, nobody)
		somebody := a.peerOf(0)
		somebody.Keepalive = 0 // It never speaks first.
		b.configure(t, somebody)
		a.configure(t, b.peerOf(0)) // Too late: the initiation is on its way to nowhere.

		if n := b.rehandshake(t, a.key); n != 0 {
			t.Errorf("the side with the greater key began anew with %d peers, want it to wait", n)
		}
		if n := a.rehandshake(t, b.key); n != 1 {
			t.Errorf("began anew with %d peers, want one", n)
		}
		polltest.Until(t, 10*time.Second, "a session", func() bool { return !a.peer(t, b.key).LastHandshake.IsZero() })
		before := a.peer(t, b.key)
		if n := a.rehandshake(t, b.key); n != 0 {
			t.Errorf("began anew with %d peers, want the session to be left alone", n)
		}
		if after := a.peer(t, b.key); after.LastHandshake != before.LastHandshake || after.RxBytes < before.RxBytes {
			t.Errorf("the session was touched: %+v, before %+v", after, before)
		}
		echo(t, dial(t, b, a, 0), 1000)
	})
}
