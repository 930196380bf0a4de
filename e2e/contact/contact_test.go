package contact

import (
	"flag"
	"fmt"
	"math"
	"math/bits"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestMain(m *testing.M) {
	RunAsSide()
	os.Exit(m.Run())
}

// kernelVariable is set on machines with kernel WireGuard.
const kernelVariable = "SEMAPHORE_TEST_KERNEL"

// eachPair runs a test with pairs of all backends that this machine has.
func eachPair(t *testing.T, f func(t *testing.T, p *Pair)) {
	t.Helper()
	eachPairOver(t, false, f)
}

func eachPairOver(t *testing.T, ipv6 bool, f func(t *testing.T, p *Pair)) {
	t.Helper()
	nstest.Root(t)
	backends := [][2]string{{tunnel.Userspace, tunnel.Userspace}}
	if os.Getenv(kernelVariable) != "" {
		backends = [][2]string{{tunnel.Kernel, tunnel.Userspace}, {tunnel.Kernel, tunnel.Kernel}}
	} else {
		t.Log("without kernel WireGuard, with which make test-kernel does this")
	}
	for _, b := range backends {
		t.Run(b[0]+" and "+b[1], func(t *testing.T) {
			p, err := New(Config{Dir: t.TempDir(), Backends: b, IPv6: ipv6})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			f(t, p)
		})
	}
}

// connect waits until requests come through from both sides.
func connect(t *testing.T, p *Pair) {
	t.Helper()
	if err := p.each(func(side int) error { return p.reach(side, time.Minute) }); err != nil {
		t.Fatal(err)
	}
}

func meet(t *testing.T, p *Pair) {
	t.Helper()
	now := time.Now()
	if err := p.each(func(side int) error { return p.Meet(side, now) }); err != nil {
		t.Fatal(err)
	}
}

func part(t *testing.T, p *Pair) {
	t.Helper()
	p.Relay(nil)
	if err := p.part(); err != nil {
		t.Fatal(err)
	}
}

// retries returns how often a side initiated its handshake again since it was opened.
func retries(t *testing.T, p *Pair, side int) int {
	t.Helper()
	_, _, n, err := p.Look(side)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// losing loses the first so many packets of a kind from each side.
func losing(lose map[[2]int]int) Rule {
	var mu sync.Mutex
	return func(q Packet) (time.Duration, bool) {
		mu.Lock()
		defer mu.Unlock()
		which := [2]int{q.From, int(q.Kind)}
		if lose[which] > 0 {
			lose[which]--
			return 0, false
		}
		return 0, true
	}
}

// Two sides whose initiations cross have a session each that the other one doesn't
// know, and WireGuard may do nothing about it for 15 s. One side initiates again.
func TestCrossedInitiations(t *testing.T) {
	eachPair(t, func(t *testing.T, p *Pair) {
		began := 0
		// Depending on the order of packets, WireGuard sometimes recovers by itself.
		for round := 0; round < 5 || began == 0 && round < 50; round++ {
			var (
				mu   sync.Mutex
				held [2][]byte
			)
			// The first initiation of each side waits for that of the other.
			p.Relay(func(q Packet) (time.Duration, bool) {
				mu.Lock()
				defer mu.Unlock()
				if q.Kind != Initiation || held[0] != nil && held[1] != nil {
					return 0, true
				}
				held[q.From] = q.Data
				if held[1-q.From] != nil {
					p.Inject(q.From, held[1-q.From])
					return 0, true
				}
				return 0, false
			})
			before := retries(t, p, 0) + retries(t, p, 1)
			meet(t, p)
			connect(t, p)
			// Usually the initiator retries; the other side does when the initiator is slow.
			began += retries(t, p, 0) + retries(t, p, 1) - before
			part(t, p)
		}
		if began == 0 {
			t.Error("neither side initiated a handshake again")
		}
	})
}

// Both directions work after any of the first packets are lost, and before WireGuard's own
// retries.
func TestFirstPacketsLost(t *testing.T) {
	eachPair(t, func(t *testing.T, p *Pair) {
		kinds := []int{Initiation, Response, Transport}
		for mask := range 1 << 6 {
			// One, two, or all of them.
			if bits.OnesCount(uint(mask)) > 2 && mask != 1<<6-1 {
				continue
			}
			lose := map[[2]int]int{}
			name := ""
			for bit := range 6 {
				if mask>>bit&1 == 1 {
					lose[[2]int{bit % 2, kinds[bit/2]}] = 1
					name += fmt.Sprintf(" %d of %d", kinds[bit/2], bit%2)
				}
			}
			needed := lose[[2]int{0, Initiation}]+lose[[2]int{1, Initiation}] == 2
			p.Relay(losing(lose))
			before := retries(t, p, 0) + retries(t, p, 1)
			meet(t, p)
			connect(t, p)
			if needed {
				// It is counted when it has been done.
				polltest.Until(t, time.Minute, "a side to initiate again without packets"+name, func() bool {
					return retries(t, p, 0)+retries(t, p, 1) > before
				})
			}
			part(t, p)
		}
	})
}

// A side may have a session in which it can't receive: if wireguard-go receives an initiation
// and the response to its own at the same time, it stores a session under the wrong index.
// Only another handshake recovers from that.
func TestSessionInWhichNothingComesBack(t *testing.T) {
	eachPair(t, func(t *testing.T, p *Pair) {
		for deaf := range 2 {
			var (
				mu          sync.Mutex
				initiations int
			)
			// Until the side that can't receive has initiated again, it receives only
			// responses to earlier initiations.
			p.Relay(func(q Packet) (time.Duration, bool) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case q.From == deaf && q.Kind == Initiation:
					initiations++
				case q.From != deaf && q.Kind != Response && initiations < 2:
					return 0, false
				}
				return 0, true
			})
			before := retries(t, p, deaf)
			meet(t, p)
			connect(t, p)
			// It is counted when it has been done.
			polltest.Until(t, time.Minute, "the deaf side to initiate again", func() bool { return retries(t, p, deaf) > before })
			part(t, p)
		}
	})
}

// A restarted side must send an initiation, because the other side doesn't notice the loss of
// the sessions, regardless of which side initiates the first handshake.
func TestRestartedSideGoesOnByItself(t *testing.T) {
	eachPair(t, func(t *testing.T, p *Pair) {
		for side := range 2 {
			meet(t, p)
			connect(t, p)
			if err := p.Restart(side); err != nil {
				t.Fatal(err)
			}
			// The other side may initiate by itself, too.
			p.Relay(losing(map[[2]int]int{{side, Initiation}: 3, {1 - side, Initiation}: math.MaxInt}))
			if err := p.Meet(side, time.Now()); err != nil {
				t.Fatal(err)
			}
			connect(t, p)
			polltest.Until(t, time.Minute, "the restarted side to initiate again", func() bool { return retries(t, p, side) > 0 })
			part(t, p)
		}
	})
}

// A side that isn't a peer of the other one gets no error, and retries for a limited time.
func TestSideThatIsNotKnown(t *testing.T) {
	eachPair(t, func(t *testing.T, p *Pair) {
		if err := p.Meet(0, time.Now()); err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, time.Minute, "several attempts", func() bool { return retries(t, p, 0) >= 4 })
		if err := p.Meet(1, time.Now()); err != nil {
			t.Fatal(err)
		}
		connect(t, p)
		part(t, p)
	})
}

// Flags for measuring, see docs/benchmarks.md.
var (
	contacts = flag.Int("contacts", 8, "first contacts that TestFirstContacts makes with each pair of backends and each family")
	slow     = flag.Duration("slow", Goal, "print the journal of trials that took longer")
)

// TestFirstContacts makes first contacts in random order, with one packet of ten lost: half of
// them after a restart of one side, and half of each over a round trip of 20 ms.
func TestFirstContacts(t *testing.T) {
	var all []time.Duration
	for _, ipv6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[ipv6], func(t *testing.T) {
			eachPairOver(t, ipv6, func(t *testing.T, p *Pair) {
				var these []time.Duration
				for i := range *contacts {
					p.Relay(Lossy(0.1, time.Duration(i/2%2)*10*time.Millisecond))
					took, err := p.Run(Trial{Spread: 50 * time.Millisecond, Restarted: i%2 == 1, Timeout: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					if took[0] == time.Minute || took[1] == time.Minute {
						t.Error("no first contact within a minute")
					}
					these = append(these, took[:]...)
					if max(took[0], took[1]) <= *slow {
						continue
					}
					how, err := p.Story()
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("contact %d took %v:\n%s", i, took, how)
				}
				t.Log(Distribution(these))
				all = append(all, these...)
			})
		})
	}
	t.Logf("all: %s", Distribution(all))
}
