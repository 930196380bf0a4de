package routes

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// trustedFor is how long cached paths are valid. Most changes cause events; the removal of
// routes from a link that goes down doesn't.
const trustedFor = 10 * time.Minute

// Underlay caches the paths to the endpoints of peers, and knows which events may change
// them. An endpoint is looked up once, and again after such an event, so that the cost of
// a pass or an event doesn't grow with the mesh. It is safe for concurrent use.
type Underlay struct {
	// lookUp queries the kernel. mtus caches MTUs of links by index. Without a path the
	// result has no MTU.
	lookUp func(to netip.Addr, mtus map[int]int) (cachedPath, error)
	now    func() time.Time

	mu          sync.Mutex
	paths       map[netip.Addr]cachedPath // the zero cachedPath: to be looked up
	sorted      []netip.Addr              // keys of paths
	mtus        map[int]int               // of the links of paths, by index
	invalidated time.Time                 // last time that all were invalidated

	// asked are the addresses of the last call of Paths, and found its result while it is current.
	asked   []netip.Addr
	found   []tunnel.UnderlayPath
	current bool
}

// cachedPath is a cached path and its links.
type cachedPath struct {
	path  tunnel.UnderlayPath
	links map[int]int // MTU by index
	known bool        // looked up; there may be no path
}

// Paths returns the paths to the addresses, without those that have none. The cache keeps
// only these addresses. The result must not be changed.
func (u *Underlay) Paths(to []netip.Addr) ([]tunnel.UnderlayPath, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.now(); now.Sub(u.invalidated) >= trustedFor {
		u.paths, u.current, u.invalidated = nil, false, now
	}
	if u.current && slices.Equal(u.asked, to) {
		return u.found, nil
	}
	entries := make(map[netip.Addr]cachedPath, len(to))
	for _, addr := range to {
		entries[addr] = u.paths[addr]
	}
	u.paths, u.sorted = entries, make([]netip.Addr, 0, len(entries))
	for addr := range entries {
		u.sorted = append(u.sorted, addr)
	}
	slices.SortFunc(u.sorted, netip.Addr.Compare)

	var paths []tunnel.UnderlayPath
	mtus := make(map[int]int) // read since the lock was taken, after any event
	for _, addr := range u.sorted {
		w := entries[addr]
		if !w.known {
			var err error
			if w, err = u.lookUp(addr, mtus); err != nil {
				return nil, err
			}
			w.known = true
			entries[addr] = w
		}
		if w.path.MTU > 0 {
			paths = append(paths, w.path)
		}
	}
	u.mtus = make(map[int]int)
	for _, w := range entries {
		for index, mtu := range w.links {
			u.mtus[index] = mtu
		}
	}
	u.asked, u.found, u.current = slices.Clone(to), paths, true
	return paths, nil
}

// Links returns the indexes of the links of cached paths to the addresses that match, sorted.
func (u *Underlay) Links(match func(netip.Addr) bool) []int {
	u.mu.Lock()
	defer u.mu.Unlock()
	found := map[int]struct{}{}
	for addr, w := range u.paths {
		for index := range w.links {
			if match(addr) {
				found[index] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// invalidate drops all cached paths.
func (u *Underlay) invalidate() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.paths, u.current = nil, false
	u.invalidated = u.now()
}

// linkChanged records the MTU of a link, 0 when it was removed or is down, and reports
// whether that may change a path.
func (u *Underlay) linkChanged(index, mtu int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if before, used := u.mtus[index]; !used || before == mtu {
		return false
	}
	u.current = false
	delete(u.mtus, index) // until the next lookup
	for addr, w := range u.paths {
		if _, uses := w.links[index]; uses {
			u.paths[addr] = cachedPath{}
		}
	}
	return true
}

// routeChanged records that a route to a prefix was added, changed or removed, and reports
// whether that may change a path.
func (u *Underlay) routeChanged(prefix netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	first, _ := slices.BinarySearchFunc(u.sorted, prefix.Masked().Addr(), netip.Addr.Compare)
	changed := false
	for _, addr := range u.sorted[first:] {
		if !prefix.Contains(addr) {
			break
		}
		if _, wanted := u.paths[addr]; wanted {
			u.paths[addr] = cachedPath{}
		}
		changed = true
		u.current = false
	}
	return changed
}
