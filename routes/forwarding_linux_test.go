package routes

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// setting writes a setting of the current namespace.
func setting(t *testing.T, name, value string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
}

// addHost makes the current namespace a node with a device of ours and a pod's link, which
// forwards packets of both families.
func addHost(t *testing.T) {
	t.Helper()
	setting(t, "net/ipv4/ip_forward", "1")
	setting(t, "net/ipv6/conf/all/forwarding", "1")
	addDevice(t, "wireguard.gcp")
	must(t, netlink.LinkSetAlias(link(t, "wireguard.gcp"), tunnel.Alias("gcp")))
	addDevice(t, "cni0")
	addAddress(t, "cni0", "10.2.1.1/24", "fd00:2:0:1::1/64")
	addDevice(t, "eth0")
	addAddress(t, "eth0", "192.0.2.11/24")
}

func forwardingOff(t *testing.T) []string {
	t.Helper()
	off, err := ForwardingOff(prefixes("10.2.1.0/24", "fd00:2:0:1::/64"), prefixes("10.4.0.0/16", "fd00:4::/48"))
	must(t, err)
	return off
}

func TestForwardingSettings(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings map[string]string
		off      []string
	}{
		{name: "all forward"},
		{"none of IPv4", map[string]string{"net/ipv4/ip_forward": "0"}, []string{"net.ipv4.ip_forward=0"}},
		{"pods' link", map[string]string{"net/ipv4/conf/cni0/forwarding": "0"}, []string{"net.ipv4.conf.cni0.forwarding=0"}},
		{"a link without pods", map[string]string{"net/ipv4/conf/eth0/forwarding": "0"}, nil},
		{"IPv6", map[string]string{"net/ipv6/conf/all/forwarding": "0"}, []string{"net.ipv6.conf.all.forwarding=0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				addHost(t)
				for name, value := range c.settings {
					setting(t, name, value)
				}
				if off := forwardingOff(t); !slices.Equal(off, c.off) {
					t.Errorf("off are %q, want %q", off, c.off)
				}
			})
		})
	}
}

// Since Linux 6.17 a link can forward IPv6 packets while others don't.
func TestForcedForwarding(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addHost(t)
		setting(t, "net/ipv6/conf/all/forwarding", "0")
		for _, c := range []struct{ link, off string }{
			{"eth0", "[net.ipv6.conf.all.forwarding=0]"}, {"wireguard.gcp", "[net.ipv6.conf.all.forwarding=0]"}, {"cni0", "[]"},
		} {
			name := "net/ipv6/conf/" + c.link + "/force_forwarding"
			if _, err := os.Stat("/proc/sys/" + name); err != nil {
				t.Skip("this kernel can't force it: ", err)
			}
			setting(t, name, "1")
			if got := fmt.Sprint(forwardingOff(t)); got != c.off {
				t.Errorf("forced on %s, too: off are %s, want %s", c.link, got, c.off)
			}
		}
	})
}

// Without pods or remotes of a family its settings don't matter.
func TestForwardingOfOtherFamilies(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addHost(t)
		setting(t, "net/ipv4/ip_forward", "0")
		setting(t, "net/ipv6/conf/all/forwarding", "0")
		for _, c := range []struct{ pods, remotes, off string }{
			{"10.2.1.0/24", "10.4.0.0/16", "[net.ipv4.ip_forward=0]"},
			{"10.2.1.0/24", "fd00:4::/48", "[]"},
			{"fd00:2:0:1::/64", "fd00:4::/48", "[net.ipv6.conf.all.forwarding=0]"},
		} {
			off, err := ForwardingOff(prefixes(c.pods), prefixes(c.remotes))
			must(t, err)
			if got := fmt.Sprint(off); got != c.off {
				t.Errorf("%s to %s: off are %s, want %s", c.pods, c.remotes, got, c.off)
			}
		}
	})
}

// Forwarding is switched on for our devices only.
func TestForwardingIsEnabledOnOurDevices(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		setting(t, "net/ipv4/conf/default/forwarding", "0")
		addHost(t)
		setting(t, "net/ipv4/conf/wireguard.gcp/forwarding", "0")
		setting(t, "net/ipv4/conf/cni0/forwarding", "0")
		enabled, err := EnableForwarding()
		must(t, err)
		if !slices.Equal(enabled, []string{"wireguard.gcp"}) {
			t.Errorf("enabled on %q", enabled)
		}
		for name, want := range map[string]string{"wireguard.gcp": "1", "cni0": "0", "eth0": "1"} {
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/forwarding")
			must(t, err)
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("forwarding of %s is %s, want %s", name, got, want)
			}
		}
		if enabled, err := EnableForwarding(); err != nil || len(enabled) > 0 {
			t.Errorf("again: %q, %v", enabled, err)
		}
	})
}

// Changes cause a notification; links that forward don't.
func TestForwardingMonitor(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addHost(t)
		setting(t, "net/ipv6/conf/default/forwarding", "0")
		events := start(t, NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}))
		quiet(t, events)
		addDevice(t, "veth1")
		select {
		case <-events:
			t.Error("notified of what doesn't matter")
		case <-time.After(100 * time.Millisecond):
		}
		for _, change := range []func(){
			func() { setting(t, "net/ipv4/conf/cni0/forwarding", "0") },
			func() { setting(t, "net/ipv6/conf/all/forwarding", "0") },
			func() {
				setting(t, "net/ipv4/conf/default/forwarding", "0")
				addDevice(t, "veth2")
			},
		} {
			change()
			quiet(t, events)
		}
	})
}
