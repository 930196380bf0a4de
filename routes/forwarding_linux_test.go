package routes

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
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

func mustForwarding(t *testing.T) Forwarding {
	t.Helper()
	f, err := ReadForwarding(t.Context(), prefixes("10.2.1.0/24", "fd00:2:0:1::/64"), prefixes("10.4.0.0/16", "fd00:4::/48"))
	must(t, err)
	return f
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
				if f := mustForwarding(t); !slices.Equal(f.Off, c.off) {
					t.Errorf("off are %q, want %q", f.Off, c.off)
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
			if got := fmt.Sprint(mustForwarding(t).Off); got != c.off {
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
			f, err := ReadForwarding(t.Context(), prefixes(c.pods), prefixes(c.remotes))
			must(t, err)
			if got := fmt.Sprint(f.Off); got != c.off {
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

func TestForwardChains(t *testing.T) {
	for _, c := range []struct {
		name                 string
		rules                []string // of nft(8), or commands of iptables
		denying, conditional string
	}{
		{name: "none"},
		{name: "accepts", rules: []string{"add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }"}},
		{
			name:    "drops all",
			rules:   []string{"add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"},
			denying: "nft chain ip filter FORWARD",
		},
		{
			name: "drops all, with rules that drop some",
			rules: []string{
				"add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }",
				"add rule inet f c ct state invalid counter drop; add rule inet f c log",
			},
			denying: "nft chain inet f c",
		},
		{
			name: "a rule that rejects all",
			rules: []string{
				"add table inet f; add chain inet f c { type filter hook forward priority 0; policy accept; }",
				"add rule inet f c counter reject with icmpx admin-prohibited; add rule inet f c accept",
			},
			denying: "nft chain inet f c",
		},
		{
			name: "accepts some",
			rules: []string{
				"add table ip6 f; add chain ip6 f c { type filter hook forward priority 0; policy drop; }",
				"add rule ip6 f c ct state established accept",
			},
			conditional: "nft chain ip6 f c",
		},
		{
			name: "other chains decide",
			rules: []string{
				"add table ip f; add chain ip f other; add chain ip f c { type filter hook forward priority 0; policy drop; }",
				"add rule ip f c jump other",
			},
			conditional: "nft chain ip f c",
		},
		{
			name: "a map decides",
			rules: []string{
				"add table ip f; add chain ip f c { type filter hook forward priority 0; policy drop; }",
				"add rule ip f c ip daddr vmap { 10.2.0.0/16 : accept }",
			},
			conditional: "nft chain ip f c",
		},
		{
			name:  "another hook",
			rules: []string{"add table ip filter; add chain ip filter INPUT { type filter hook input priority 0; policy drop; }"},
		},
		{name: "iptables-nft drops all", rules: []string{"iptables-nft -P FORWARD DROP"}, denying: "nft chain ip filter FORWARD"},
		{
			name:        "iptables-nft accepts some",
			rules:       []string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -s 10.2.0.0/16 -j ACCEPT"},
			conditional: "nft chain ip filter FORWARD",
		},
		{
			name:    "iptables-nft rejects all",
			rules:   []string{"iptables-nft -A FORWARD -j REJECT"},
			denying: "nft chain ip filter FORWARD",
		},
		{name: "iptables-legacy", rules: []string{"iptables-legacy -P FORWARD ACCEPT"}},
		{name: "iptables-legacy drops all", rules: []string{"iptables-legacy -P FORWARD DROP"}, denying: "iptables (legacy) chain FORWARD"},
		{
			name:        "iptables-legacy accepts some",
			rules:       []string{"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT"},
			conditional: "iptables (legacy) chain FORWARD",
		},
		{
			name: "iptables-legacy drops some, and then all",
			rules: []string{
				"iptables-legacy -A FORWARD -s 192.0.2.0/24 -j DROP", "iptables-legacy -A FORWARD -m conntrack --ctstate INVALID -j DROP",
				"iptables-legacy -A FORWARD -j REJECT",
			},
			denying: "iptables (legacy) chain FORWARD",
		},
		{name: "ip6tables-legacy drops all", rules: []string{"ip6tables-legacy -P FORWARD DROP"}, denying: "ip6tables (legacy) chain FORWARD"},
		{
			name:        "ip6tables-legacy accepts some",
			rules:       []string{"ip6tables-legacy -P FORWARD DROP", "ip6tables-legacy -N other", "ip6tables-legacy -A FORWARD -j other"},
			conditional: "ip6tables (legacy) chain FORWARD",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				addHost(t)
				mustFilter(t, gcpOrigin())
				for _, rule := range c.rules {
					if words := strings.Fields(rule); strings.Contains(words[0], "tables-") {
						if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
							t.Skipf("NOT TESTED HERE: %s: %v: %s", rule, err, out)
						}
						continue
					}
					nft(t, rule)
				}
				f := mustForwarding(t)
				if got := strings.Join(f.Denying, ","); got != c.denying {
					t.Errorf("denying are %q, want %q", got, c.denying)
				}
				if got := strings.Join(f.Conditional, ","); got != c.conditional {
					t.Errorf("conditional are %q, want %q", got, c.conditional)
				}
				// The kernel agrees where all is denied.
				if c.denying != "" && !f.Blocked() {
					t.Error("not blocked")
				}
			})
		})
	}
}

// Reading legacy iptables doesn't create its tables.
func TestForwardingIsReadWithoutATrace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addHost(t)
		mustForwarding(t)
		for _, names := range []string{"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"} {
			if found, err := os.ReadFile(names); err == nil && len(found) > 0 {
				t.Errorf("%s: %s", names, found)
			}
		}
	})
}

// Changes cause a notification; links that forward and other chains don't.
func TestForwardingMonitors(t *testing.T) {
	for i, c := range []struct {
		name    string
		changes []func(t *testing.T)
	}{
		{name: "settings", changes: []func(t *testing.T){
			func(t *testing.T) { setting(t, "net/ipv4/conf/cni0/forwarding", "0") },
			func(t *testing.T) { setting(t, "net/ipv6/conf/all/forwarding", "0") },
			func(t *testing.T) {
				setting(t, "net/ipv4/conf/default/forwarding", "0")
				addDevice(t, "veth2")
			},
		}},
		{name: "chains", changes: []func(t *testing.T){
			func(t *testing.T) { nft(t, "add chain ip f forwarded { type filter hook forward priority 0; }") },
			func(t *testing.T) { nft(t, "flush ruleset") },
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				addHost(t)
				setting(t, "net/ipv6/conf/default/forwarding", "0")
				events := start(t, NewForwardingMonitors(slog.New(slog.NewTextHandler(t.Output(), nil)), nil)[i])
				quiet(t, events)
				addDevice(t, "veth1")
				nft(t, "add table ip f; add chain ip f c { type filter hook input priority 0; }; add chain ip f other; add rule ip f c jump other")
				select {
				case <-events:
					t.Error("notified of what doesn't matter")
				case <-time.After(100 * time.Millisecond):
				}
				for _, change := range c.changes {
					change(t)
					quiet(t, events)
				}
			})
		})
	}
}
