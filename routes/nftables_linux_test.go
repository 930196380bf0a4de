package routes

import (
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Objects with the requested attributes match, also with additional ones; others don't.
func TestMatches(t *testing.T) {
	rule := func(subnet, device string) object {
		return (&Ruleset{}).rulesFor(arrivalChain, claim{subnet: prefixes(subnet)[0], device: device})[0]
	}
	exit := func(chain, device string) object {
		return exitRules(chain, claim{subnet: prefixes("10.4.0.0/16")[0], device: device}, 0)[0]
	}
	encrypted := func(mark uint32, port int) object {
		shared := []Origin{{Device: "wireguard.gcp", Subnets: prefixes("10.4.0.0/16")}}
		return (&Ruleset{Mark: mark, Shared: shared, Ports: map[string]int{"wireguard.gcp": port}}).sharedRules()[0]
	}
	objects := map[string]object{
		"encrypted": encrypted(0x1073, 51820), "another mark": encrypted(0x1033, 51820), "another port": encrypted(0x1073, 51821),
		"table": tableObject(), "chain": emptyChains()[0].object(), "another chain": emptyChains()[1].object(),
		"exit": exit(exitChain, "wireguard.gcp"), "forwarded": exit(forwardedChain, "wireguard.gcp"), "without a device": exit(exitChain, ""),
		"rule": rule("10.4.0.0/16", "wireguard.gcp"), "longer": rule("10.4.0.0/17", "wireguard.gcp"),
		"another device": rule("10.4.0.0/16", "wireguard.merit"), "IPv6": rule("fd04::/48", "wireguard.gcp"),
	}
	for shown, o := range objects {
		body, err := encode(append(o.attrs, number(unix.NFTA_RULE_HANDLE+100, 7))) // added by the kernel
		must(t, err)
		attrs, err := netlink.UnmarshalAttributes(body)
		must(t, err)
		for wanted, want := range objects {
			if got := matches(attrs, want.attrs); got != (shown == wanted) {
				t.Errorf("%s shows %s: %v", shown, wanted, got)
			}
		}
	}
}

func TestConcernsFilter(t *testing.T) {
	event := func(name string) []byte {
		body, err := encode([]attr{label(unix.NFTA_TABLE_NAME, name)})
		must(t, err)
		return append(make([]byte, genHeader), body...)
	}
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	for name, test := range map[string]struct {
		kind uint16
		data []byte
		want bool
	}{
		"ours":              {subsystem | unix.NFT_MSG_DELTABLE, event(FilterTable), true},
		"another":           {subsystem | unix.NFT_MSG_DELTABLE, event("kube-proxy"), false},
		"a longer name":     {subsystem | unix.NFT_MSG_NEWRULE, event(FilterTable + "2"), false},
		"new generation":    {subsystem | unix.NFT_MSG_NEWGEN, event(FilterTable), false},
		"cut off":           {subsystem | unix.NFT_MSG_NEWRULE, []byte{1, 2}, true},
		"without a name":    {subsystem | unix.NFT_MSG_NEWRULE, make([]byte, genHeader), true},
		"broken attributes": {subsystem | unix.NFT_MSG_NEWRULE, append(make([]byte, genHeader), 1, 0, 1, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			msg := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: test.kind}, Data: test.data}
			if got := concernsFilter(msg) != 0; got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
