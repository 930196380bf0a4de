package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// narrowMTU is too small for the tunnel's packets of 1420 bytes.
const narrowMTU = 1400

func setMTU(n *nstest.Namespace, device string, mtu int) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, mtu)
	})
}

// narrowLink joins two sites by a narrow link.
func narrowLink(t *testing.T, a, b *site) {
	t.Helper()
	nstest.Pair(t, a.ns, b.ns, "underlay", "underlay")
	if err := errors.Join(setMTU(a.ns, "underlay", narrowMTU), setMTU(b.ns, "underlay", narrowMTU)); err != nil {
		t.Fatal(err)
	}
}

// narrowRouter joins two sites by a router, whose link to b is narrow. Site a learns the path
// MTU only from the router.
func narrowRouter(t *testing.T, a, b *site) {
	t.Helper()
	router := nstest.New(t)
	nstest.Pair(t, a.ns, router, "underlay", "a")
	nstest.Pair(t, router, b.ns, "b", "underlay")
	b.underlay = [2]netip.Addr{addr("198.51.100.%d", 2), addr("fd00:198::%d", 2)}
	gateways := map[*site][2]netip.Addr{
		a: {addr("192.0.2.%d", 254), addr("fd00:192::%d", 254)},
		b: {addr("198.51.100.%d", 254), addr("fd00:198::%d", 254)},
	}
	errs := []error{
		setMTU(router, "b", narrowMTU), setMTU(b.ns, "underlay", narrowMTU),
		router.Do(func() error {
			var errs []error
			for _, sysctl := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
				errs = append(errs, os.WriteFile("/proc/sys/net/"+sysctl, []byte("1"), 0))
			}
			for family, bits := range []int{24, 64} {
				errs = append(errs,
					addAddress("a", netip.PrefixFrom(gateways[a][family], bits)),
					addAddress("b", netip.PrefixFrom(gateways[b][family], bits)))
			}
			return errors.Join(errs...)
		}),
	}
	for s, via := range gateways {
		errs = append(errs, s.ns.Do(func() error { return defaultRoutes(s, via) }))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// defaultRoutes adds default routes via a router to a site. The site gets its addresses
// later, so the routes don't depend on them.
func defaultRoutes(_ *site, via [2]netip.Addr) error {
	l, err := findLink("underlay")
	if err != nil {
		return err
	}
	var errs []error
	for family, all := range netsOf([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}) {
		errs = append(errs, netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.index, Dst: &all, Gw: via[family].AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		}))
	}
	return errors.Join(errs...)
}

// counters returns the kernel's counters of a namespace, with the names of nstat(8).
func counters(t *testing.T, n *nstest.Namespace) map[string]int {
	t.Helper()
	found := map[string]int{}
	err := n.Do(func() error {
		four, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		// Lines come in pairs: names and numbers.
		lines := strings.Split(strings.TrimSpace(string(four)), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, numbers := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j := 1; j < len(names); j++ {
				value, err := strconv.Atoi(numbers[j])
				if err != nil {
					return err
				}
				found[strings.TrimSuffix(names[0], ":")+names[j]] = value
			}
		}
		six, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(six)) {
			fields := strings.Fields(line)
			value, err := strconv.Atoi(fields[1])
			if err != nil {
				return err
			}
			found[fields[0]] = value
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A path with an MTU too small for the tunnel's packets carries bulk traffic, with either
// backend: the packets are fragmented, and no batch of them is lost for ever.
func TestBulkOverAPathThatIsTooNarrow(t *testing.T) {
	paths := []struct {
		name string
		join func(t *testing.T, a, b *site)
	}{{"of its own link", narrowLink}, {"behind a router", narrowRouter}}
	eachBackend(t, func(t *testing.T, backend string) {
		for _, path := range paths {
			for underlay, family := range []string{"IPv4", "IPv6"} {
				t.Run(fmt.Sprintf("%s %s", family, path.name), func(t *testing.T) {
					if underlay != 0 {
						nstest.Long(t)
					}
					a, b := sitesOver(t, backend, Userspace, path.join)
					meet(t, a, b, underlay)
					before := [2]map[string]int{counters(t, a.ns), counters(t, b.ns)}
					echo(t, dial(t, a, b, 0), 2<<20)
					for i, s := range []*site{a, b} {
						after := counters(t, s.ns)
						count := func(name string) int { return after[name] - before[i][name] }
						t.Logf("site %d: %d segments, %d again; fragmented %d and %d", i, count("TcpOutSegs"), count("TcpRetransSegs"),
							count("IpFragCreates"), count("Ip6FragCreates"))
						if sent, again := count("TcpOutSegs"), count("TcpRetransSegs"); again > sent/4 {
							t.Errorf("%d of %d TCP segments were sent again", again, sent)
						}
					}
					if got := counters(t, b.ns); got["IpFragCreates"]+got["Ip6FragCreates"] == 0 {
						t.Error("nothing was fragmented: the path isn't too narrow")
					}
				})
			}
		}
	})
}
