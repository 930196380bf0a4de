package peers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// When to begin anew with a peer that was configured a moment ago and doesn't
// answer: after firstHandshake, twice that, four times, up to handshakeRetries
// times in all. From then on WireGuard's own retries have to do: the peer may
// not be there.
const (
	firstHandshake   = time.Second
	handshakeRetries = 4
	// handshakeBurst bounds how many peers are begun with at once. With
	// thousands of new ones an answer that is late is more likely than one
	// that doesn't come.
	handshakeBurst = 64
)

// Rehandshake begins anew with peers that are new and haven't shaken hands, see
// [tunnel.Device.Rehandshake]. It is meant to be called about every second, and
// may run beside Reconcile, but not beside itself.
func (c *Controller) Rehandshake(ctx context.Context) error {
	if _, exists := c.cfg.Device.Index(); !exists {
		return nil
	}
	state := c.State()
	late := slices.DeleteFunc(c.handshakes.late(state.Configured, time.Now()), func(key tunnel.Key) bool {
		at, found := slices.BinarySearchFunc(state.Peers, key, func(p Peer, key tunnel.Key) int { return p.PublicKey.Compare(key) })
		return found && !state.Peers[at].Endpoint.IsValid() // It has to speak first.
	})
	if len(late) == 0 {
		return nil
	}
	begun, err := c.cfg.Device.Rehandshake(ctx, late)
	if begun > 0 {
		c.log.Debug("handshakes begun anew", "peers", begun)
	}
	if err != nil {
		return fmt.Errorf("handshakes of %s: %w", c.cfg.Device.Name(), err)
	}
	return nil
}

// handshakes remembers how often peers were asked to begin anew.
type handshakes struct {
	tries map[tunnel.Key]int // of those that are still in question
}

// late returns the peers that are due at the time now, those that were tried
// least first, given since when each is configured.
func (h *handshakes) late(configured map[tunnel.Key]time.Time, now time.Time) []tunnel.Key {
	const done = firstHandshake << handshakeRetries
	tries := map[tunnel.Key]int{}
	var due []tunnel.Key
	for key, since := range configured {
		age := now.Sub(since)
		if age >= done {
			continue
		}
		tries[key] = h.tries[key]
		if tries[key] < handshakeRetries && age >= firstHandshake<<tries[key] {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b tunnel.Key) int { return cmp.Or(cmp.Compare(tries[a], tries[b]), a.Compare(b)) })
	due = due[:min(len(due), handshakeBurst)]
	for _, key := range due {
		tries[key]++
	}
	h.tries = tries
	return due
}
