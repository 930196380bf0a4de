package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// probed allows probes between two sites.
func probed(t *testing.T, a, b *site) {
	t.Helper()
	for _, s := range []*site{a, b} {
		other := a
		if s == a {
			other = b
		}
		peer := other.peerOf(0)
		peer.AllowedIPs = append([]netip.Prefix{netip.PrefixFrom(LinkLocal(other.key), 128)}, peer.AllowedIPs...)
		s.configure(t, peer)
	}
}

func proberOf(t *testing.T, s *site) *Prober {
	t.Helper()
	var p *Prober
	err := s.ns.Do(func() (err error) {
		p, err = newProber(s.link(t), LinkLocal(s.key))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Each kernel answers the other side's probes, of both sizes.
func TestKernelsAnswerProbes(t *testing.T) {
	if families() < 2 {
		t.Skip("this kernel was booted without IPv6")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, backend)
		meet(t, a, b, 0)
		probed(t, a, b)
		_ = proberOf(t, b) // assigns the address
		for _, groups := range []string{"1 0", "0 2147483647"} {
			if err := a.ns.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte(groups), 0)
			}); err != nil {
				t.Fatal(err)
			}
			p := proberOf(t, a)
			t.Logf("%s: groups %s ask by %s", backend, groups, p.Method())
			for _, large := range []bool{false, true} {
				before := a.peer(t, b.key)
				answered, took := false, time.Duration(0)
				polltest.Until(t, 30*time.Second, "an answer", func() bool {
					if err := p.Send(LinkLocal(b.key), large); err != nil {
						t.Fatal(err)
					}
					time.Sleep(300 * time.Millisecond)
					if err := p.Receive(func(answer Answer) {
						if answer.From != LinkLocal(b.key) || answer.RTT <= 0 {
							t.Errorf("answer %+v", answer)
						}
						answered, took = answered || answer.Large == large, answer.RTT
					}); err != nil {
						t.Fatal(err)
					}
					return answered
				})
				after := a.peer(t, b.key)
				t.Logf("large %v: %d bytes out, %d in, answered after %v", large, after.TxBytes-before.TxBytes, after.RxBytes-before.RxBytes, took)
			}
		}
	})
}

// Opening a prober of a device with IPv6 disabled fails with the reason.
func TestNoProbesWithoutIPv6(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, _ := twoSites(t, backend, backend)
		if families() == 2 {
			if err := a.ns.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+a.cfg.Name+"/disable_ipv6", []byte("1"), 0)
			}); err != nil {
				t.Fatal(err)
			}
		}
		err := a.ns.Do(func() error {
			_, err := newProber(a.link(t), LinkLocal(a.key))
			return err
		})
		if !errors.Is(err, ErrNoProbes) {
			t.Errorf("error %v, want %v", err, ErrNoProbes)
		}
	})
}

// A prober fails once the device's MTU has changed, so that a probe that no longer fits isn't
// taken for a lost full-size packet. If only the address was lost, it is assigned again.
func TestProberOfADeviceThatChanges(t *testing.T) {
	if families() < 2 {
		t.Skip("this kernel was booted without IPv6")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, backend)
		probed(t, a, b)
		p := proberOf(t, a)
		change := func(what func(netlink.Link) error) {
			t.Helper()
			if err := a.ns.Do(func() error {
				l, err := netlink.LinkByName(a.cfg.Name)
				if err != nil {
					return err
				}
				return what(l)
			}); err != nil {
				t.Fatal(err)
			}
		}
		change(netlink.LinkSetDown)
		change(netlink.LinkSetUp)
		change(func(l netlink.Link) error {
			if err := p.Refresh(); err != nil {
				return err
			}
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if err == nil && !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(p.self.AsSlice()) }) {
				err = fmt.Errorf("%s isn't among %v", p.self, addrs)
			}
			return err
		})
		if err := p.Send(LinkLocal(b.key), true); err != nil {
			t.Errorf("a probe of a link that went down and up again: %v", err)
		}
		change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, l.Attrs().MTU-20) })
		if err := p.Send(LinkLocal(b.key), true); !errors.Is(err, ErrNoProbes) {
			t.Errorf("a full-size probe of before: %v, want %v", err, ErrNoProbes)
		}
		if err := p.Send(LinkLocal(b.key), false); errors.Is(err, ErrNoProbes) {
			t.Errorf("a small one: %v", err)
		}
		if err := a.ns.Do(p.Refresh); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("with another MTU: %v, want %v", err, os.ErrNotExist)
		}
	})
}

// An error of the local kernel for an unsent packet is no answer, nor is an answer to another
// process.
func TestForeignAnswersDontCount(t *testing.T) {
	p := &Prober{echo: true, token: [8]byte{1, 2, 3}}
	reply := p.payload(sizeSmall, 8+1+stampSize)
	if _, _, ok := p.read(reply); ok {
		t.Error("our own request counts as an answer")
	}
	reply[0] = echoReply
	if large, _, ok := p.read(reply); !ok || large {
		t.Errorf("an answer is large: %v, %v", large, ok)
	}
	if _, _, ok := p.read(reply[:len(reply)-1]); ok {
		t.Error("a part of an answer counts")
	}
	reply[icmpHeader]++
	if _, _, ok := p.read(reply); ok {
		t.Error("an answer to another process counts")
	}
	local := make([]byte, unix.CmsgSpace(16+28))
	if got, _ := ancillary(local); got.IsValid() {
		t.Errorf("nothing was sent by %s", got)
	}
}

func TestTimeOfAnAnswer(t *testing.T) {
	sent := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		arrived time.Time
		want    time.Duration
	}{
		"some milliseconds":             {sent.Add(3 * time.Millisecond), 3 * time.Millisecond},
		"within the clock's resolution": {sent, time.Microsecond},
		"the kernel doesn't say":        {time.Time{}, 0},
		"the clock was set back":        {sent.Add(-time.Minute), 0},
		"the clock was set forward":     {sent.Add(time.Minute), 0},
		"as long as is believed":        {sent.Add(maxRTT), maxRTT},
		"longer":                        {sent.Add(maxRTT + time.Millisecond), 0},
	} {
		if got := rtt(uint32(sent.UnixMicro()), test.arrived); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	wraps := time.UnixMicro(1<<32 - 1000)
	if got := rtt(uint32(wraps.UnixMicro()), wraps.Add(4*time.Millisecond)); got != 4*time.Millisecond {
		t.Errorf("over the end of what is stamped: %v", got)
	}
}
