package routes

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func gcpTarget() []ICMPTarget {
	return []ICMPTarget{{Device: "wireguard.gcp", Subnets: prefixes("10.4.0.0/16", "fd00:4::/48")}}
}

func mustICMP(t *testing.T, targets []ICMPTarget) {
	t.Helper()
	_, err := SyncICMP(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)), targets)
	must(t, err)
}

// The table as nft(8) prints it.
func TestICMPTableAsAnOperatorSeesIt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		mustICMP(t, gcpTarget())
		got := nft(t, "list table inet "+ICMPTable)
		for _, want := range []string{
			"type filter hook output priority 310; policy accept;",
			`oifname "wireguard.gcp" ip daddr 10.4.0.0/16 icmp type`,
			`oifname "wireguard.gcp" ip6 daddr fd00:4::/48 icmpv6 type`,
			"ip saddr set",
			"ip6 saddr set",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, got)
			}
		}
	})
}

// The table is only written when it differs.
func TestICMPTableIsRepaired(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		handles := func() string { return nft(t, "list ruleset") }
		mustICMP(t, nil)
		if got := nft(t, "list tables"); got != "" {
			t.Errorf("without targets: %s", got)
		}
		mustICMP(t, gcpTarget())
		want := handles()
		nft(t, "add counter inet "+ICMPTable+" untouched")
		mustICMP(t, gcpTarget())
		if !strings.Contains(nft(t, "list ruleset"), "untouched") {
			t.Error("a table without a difference was written")
		}
		for _, damage := range []string{
			"flush table inet " + ICMPTable, "delete table inet " + ICMPTable, "flush ruleset",
			"add rule inet " + ICMPTable + " output drop", "add chain inet " + ICMPTable + " other",
		} {
			nft(t, damage)
			mustICMP(t, gcpTarget())
			if got := handles(); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", damage, got, want)
			}
		}
		mustICMP(t, nil)
		if got := nft(t, "list tables"); got != "" {
			t.Errorf("removed: %s", got)
		}
	})
}

// Without nf_tables only what needs it fails.
func TestICMPWithoutNetfilter(t *testing.T) {
	host := nstest.New(t)
	err := nstest.WithoutNetfilter(host, func() error { _, err := SyncICMP(t.Context(), slog.New(slog.DiscardHandler), nil); return err })
	if err != nil {
		t.Errorf("without targets: %v", err)
	}
	err = nstest.WithoutNetfilter(host, func() error { _, err := SyncICMP(t.Context(), slog.New(slog.DiscardHandler), gcpTarget()); return err })
	if err == nil || !strings.Contains(err.Error(), ErrNoFilter.Error()) {
		t.Errorf("with targets: %v", err)
	}
}
