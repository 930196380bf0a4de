package routes

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// trustedFor is how long what is known of the underlay counts without a look. Most
// changes are told at once; that the kernel took routes off a link that went down
// isn't.
const trustedFor = 10 * time.Minute

// Underlay knows the ways to the endpoints of peers, and which events may have
// changed one. An endpoint is looked up once, and again after such an event, so that
// neither a pass nor an event costs more in a larger mesh. Its methods may be called
// by several goroutines at once.
type Underlay struct {
	// look asks the kernel, for links only when their MTUs aren't in mtus, by index,
	// where it leaves them. A way that isn't there has no MTU.
	look func(to netip.Addr, mtus map[int]int) (way, error)
	now  func() time.Time

	mu     sync.Mutex
	ways   map[netip.Addr]way // the zero way: to be looked up
	sorted []netip.Addr       // keys of ways
	mtus   map[int]int        // of the links of ways, by index
	looked time.Time          // when all were last to be looked up
}

// way is a path and the links that it may take.
type way struct {
	path  tunnel.UnderlayPath
	links map[int]int // MTU by index
	known bool        // looked up; there may still be no path
}

// Paths returns what is known of the ways to addresses, less those to which there is
// none. It forgets all others.
func (u *Underlay) Paths(to []netip.Addr) ([]tunnel.UnderlayPath, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.now(); now.Sub(u.looked) >= trustedFor {
		u.ways, u.looked = nil, now
	}
	ways := make(map[netip.Addr]way, len(to))
	for _, addr := range to {
		ways[addr] = u.ways[addr]
	}
	u.ways, u.sorted = ways, make([]netip.Addr, 0, len(ways))
	for addr := range ways {
		u.sorted = append(u.sorted, addr)
	}
	slices.SortFunc(u.sorted, netip.Addr.Compare)

	var paths []tunnel.UnderlayPath
	mtus := make(map[int]int) // read since the lock was taken, after any event
	for _, addr := range u.sorted {
		w := ways[addr]
		if !w.known {
			var err error
			if w, err = u.look(addr, mtus); err != nil {
				return nil, err
			}
			w.known = true
			ways[addr] = w
		}
		if w.path.MTU > 0 {
			paths = append(paths, w.path)
		}
	}
	u.mtus = make(map[int]int)
	for _, w := range ways {
		for index, mtu := range w.links {
			u.mtus[index] = mtu
		}
	}
	return paths, nil
}

// distrust has all ways looked up again.
func (u *Underlay) distrust() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ways = nil
	u.looked = u.now()
}

// linkChanged notes that a link has an MTU now, 0 when it is gone or down, and
// reports whether a way may have changed by it.
func (u *Underlay) linkChanged(index, mtu int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if before, used := u.mtus[index]; !used || before == mtu {
		return false
	}
	delete(u.mtus, index) // until it is looked up
	for addr, w := range u.ways {
		if _, uses := w.links[index]; uses {
			u.ways[addr] = way{}
		}
	}
	return true
}

// routeChanged notes that a route to a prefix was added, changed or removed, and
// reports whether it may lead to one of the endpoints.
func (u *Underlay) routeChanged(prefix netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	first, _ := slices.BinarySearchFunc(u.sorted, prefix.Masked().Addr(), netip.Addr.Compare)
	changed := false
	for _, addr := range u.sorted[first:] {
		if !prefix.Contains(addr) {
			break
		}
		if _, wanted := u.ways[addr]; wanted {
			u.ways[addr] = way{}
		}
		changed = true
	}
	return changed
}
