package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// packetsOf returns packets of these sizes.
func packetsOf(sizes ...int) [][]byte {
	packets := make([][]byte, len(sizes))
	for i, size := range sizes {
		packets[i] = make([]byte, size)
	}
	return packets
}

func TestSegments(t *testing.T) {
	for name, c := range map[string]struct {
		sizes      []int
		limit, max int
		want       int
	}{
		"none":                         {nil, 9000, maxPayload4, 0},
		"one":                          {[]int{1452}, 9000, maxPayload4, 1},
		"all of one size":              {[]int{1452, 1452, 1452}, 9000, maxPayload4, 3},
		"the last is smaller":          {[]int{1452, 1452, 96}, 9000, maxPayload4, 3},
		"nothing after a smaller one":  {[]int{1452, 96, 96}, 9000, maxPayload4, 2},
		"no larger one":                {[]int{96, 1452}, 9000, maxPayload4, 1},
		"none beyond the path's limit": {[]int{1452, 1452}, 1451, maxPayload4, 1},
		"the path's limit itself":      {[]int{1452, 1452}, 1452, maxPayload4, 2},
		"no segments at all":           {[]int{96, 96}, 0, maxPayload4, 1},
		"as many as the kernel takes":  {slices.Repeat([]int{100}, 128), 9000, maxPayload4, maxSegments},
		"as much as IPv4 carries":      {slices.Repeat([]int{8953}, 8), 9000, maxPayload4, 7},
		"exactly as much":              {[]int{50, 50, 20}, 9000, 120, 3},
		"a byte too much":              {[]int{50, 50, 21}, 9000, 120, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := segments(packetsOf(c.sizes...), c.limit, c.max); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestActions(t *testing.T) {
	for _, c := range []struct {
		errno    syscall.Errno
		segments int
		chosen   bool
		want     action
	}{
		{syscall.EMSGSIZE, 2, false, separate},
		{syscall.EMSGSIZE, 2, true, separate},
		{syscall.EINVAL, 64, true, separate},
		{syscall.EIO, 2, false, neverSegment},
		{syscall.EIO, 1, false, abort},
		{syscall.EINVAL, 1, true, clearSource},
		{syscall.ENODEV, 5, true, clearSource},
		{syscall.ENETUNREACH, 1, true, clearSource},
		{syscall.EINVAL, 1, false, abort},
		{syscall.ENODEV, 5, false, abort},
		{syscall.EMSGSIZE, 1, true, skipPacket},
		{syscall.EMSGSIZE, 1, false, skipPacket},
		{syscall.EPERM, 5, true, abort},
		{syscall.ENETUNREACH, 1, false, abort},
	} {
		err := fmt.Errorf("send: %w", os.NewSyscallError("sendmmsg", c.errno))
		if got := actionFor(err, c.segments, c.chosen); got != c.want {
			t.Errorf("%v of %d segments, source chosen: %v: got %d, want %d", c.errno, c.segments, c.chosen, got, c.want)
		}
	}
	if got := actionFor(errors.New("something else"), 5, true); got != abort {
		t.Errorf("another error: got %d", got)
	}
}

func TestNarrowPathsExpire(t *testing.T) {
	var (
		p     paths
		a, b  = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")
		start = time.Now()
		at    = func(later time.Duration) func() time.Time { return func() time.Time { return start.Add(later) } }
	)
	check := func(to netip.Addr, later time.Duration, want int) {
		t.Helper()
		if got := p.limit(to, at(later)); got != want {
			t.Errorf("limit to %s after %v: got %d, want %d", to, later, got, want)
		}
	}
	check(a, 0, maxPayload6)
	p.tooLarge(a, 1452, start)
	check(a, 0, 1451)
	check(b, 0, maxPayload6)
	p.tooLarge(a, 1400, start)
	check(a, 0, 1399)
	p.tooLarge(a, 1452, start) // sent meanwhile by another goroutine
	check(a, narrowFor-1, 1399)
	check(a, narrowFor, maxPayload6)
	p.tooLarge(a, 1452, start.Add(narrowFor))
	check(a, narrowFor, 1451)
}

func TestNarrowPathsAreBounded(t *testing.T) {
	var p paths
	start := time.Now()
	for i := range maxNarrow + 10 {
		p.tooLarge(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1452, start)
	}
	if len(p.narrow) != maxNarrow {
		t.Errorf("%d paths are cached, want %d", len(p.narrow), maxNarrow)
	}
	p.tooLarge(netip.MustParseAddr("192.0.2.1"), 1452, start.Add(narrowFor))
	if len(p.narrow) != 1 {
		t.Errorf("%d paths are cached after all but one have expired, want 1", len(p.narrow))
	}
}

func TestMessagesAreSplitIntoDatagrams(t *testing.T) {
	for name, c := range map[string]struct {
		message string
		size    int
		room    int
		want    []string
		taken   int
	}{
		"one datagram":         {"abc", 0, 9, []string{"abc"}, 3},
		"several":              {"aabbcc", 2, 9, []string{"aa", "bb", "cc"}, 6},
		"the last is smaller":  {"aabbc", 2, 9, []string{"aa", "bb", "c"}, 5},
		"no room for the last": {"aabbc", 2, 2, []string{"aa", "bb"}, 4},
		"no room at all":       {"aab", 2, 0, nil, 0},
		"nothing":              {"", 2, 9, nil, 0},
		"larger than it is":    {"abc", 100, 9, []string{"abc"}, 3},
		"nonsense for a size":  {"abc", -1, 9, []string{"abc"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			taken := split([]byte(c.message), c.size, func(datagram []byte) bool {
				if len(got) == c.room {
					return false
				}
				got = append(got, string(datagram))
				return true
			})
			if diff := cmp.Diff(c.want, got); diff != "" || taken != c.taken {
				t.Errorf("took %d, want %d; -want +got:\n%s", taken, c.taken, diff)
			}
		})
	}
}
