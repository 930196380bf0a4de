package join

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// A bound is a setting that restricts the addresses that a cluster accepts of a remote:
// those of pods, which are routed into its tunnel, and of nodes, to which the tunnel's packets
// are sent.
type bound struct {
	key, flag, what string
	prefixes        []netip.Prefix
	given           bool // by the administrator; otherwise reported by the remote
	proposed        bool // by this program, in part
	moved           bool // it replaces an existing one, as the remote's virtual subnets have changed
	limit           limit
}

// limit bounds the prefixes that are accepted from a remote's own report: their number, and
// in sum the addresses of a prefix of this length.
type limit struct{ prefixes, bits4, bits6 int }

// bounds returns the bounds of a remote. Ranges that the remote reports are accepted only
// the first time, and only up to what clusters need: kops has pods in a /11, kubeadm in a
// /48; ranges of nodes are derived from their addresses, see inspect.Facts. have are the
// settings so far.
func (s *remoteSettings) bounds(have inspect.Settings) []bound {
	pods := bound{inspect.PodSubnets, "--pod-subnets", "pods", s.pods, s.podsGiven, false, false, limit{16, 11, 48}}
	if s.mapped != nil {
		pods.prefixes, pods.proposed = s.mapped.known(s.pods), len(s.mapped.proposed) > 0
		accepted := have.Prefixes(s.name, inspect.PodSubnets)
		pods.given = pods.given || s.mapped.given(s.pods) && !slices.ContainsFunc(accepted, func(p netip.Prefix) bool { return touches(inspect.Compact(pods.prefixes), p) })
		if moved := s.mapped.moved(accepted, s.pods); !s.podsGiven && len(accepted) > 0 && !slices.Equal(moved, accepted) {
			pods.prefixes, pods.moved, pods.given = moved, true, s.mapped.chosen
		}
	}
	return []bound{pods, {inspect.NodeSubnets, "--node-subnets", "nodes", s.machines, s.machinesGiven, false, false, limit{8, 14, 62}}}
}

// private are the ranges that a remote may report (RFC 1918, RFC 6598, RFC 4193).
func private() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
	}
}

// refused returns why prefixes that a remote reports aren't accepted; empty: they are.
func (b *bound) refused() string {
	if len(b.prefixes) > b.limit.prefixes {
		return fmt.Sprintf("these are %d ranges, more than %d", len(b.prefixes), b.limit.prefixes)
	}
	var all4, all6 float64 // addresses, as a share of the limit
	for _, p := range b.prefixes {
		if !inspect.Cover(private(), []netip.Prefix{p}) {
			return p.String() + " isn't inside a private range (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7)"
		}
		if p.Addr().Is4() {
			all4 += math.Ldexp(1, b.limit.bits4-p.Bits())
		} else {
			all6 += math.Ldexp(1, b.limit.bits6-p.Bits())
		}
	}
	switch {
	case all4 > 1:
		return fmt.Sprintf("these are more addresses than a /%d has", b.limit.bits4)
	case all6 > 1:
		return fmt.Sprintf("these are more addresses than a /%d has", b.limit.bits6)
	}
	return ""
}

// agreement is what one cluster is going to accept of another one, and doesn't yet.
type agreement struct {
	cluster, remote string
	bounds          []bound
	// imports describes where its exports are imported; empty: nothing is said about it.
	imports string
}

// lines describes the agreement. Each bound has its own line, so that none is truncated.
func (a agreement) lines() []string {
	lines := []string{fmt.Sprintf("%s will accept only these addresses of %s:", a.cluster, a.remote)}
	for _, b := range a.bounds {
		by := "as it reports"
		switch {
		case b.proposed:
			by = "with the proposed ones"
		case b.given:
			by = "as you specified"
		}
		lines = append(lines, fmt.Sprintf("  %s in %s (%s)", b.what, join(b.prefixes), by))
	}
	if a.imports != "" {
		lines = append(lines, "  and import what it exports in "+a.imports)
	}
	return lines
}

// imports describes the namespaces in which a cluster with these settings imports what a new remote
// exports; empty: it is none.
func imports(before, settings inspect.Settings, remote cluster.Name) string {
	key := remote.Variables() + inspect.ImportNamespaces
	switch value, set := settings[key]; {
	case before[remote.Variables()+inspect.PodSubnets] != "":
		return ""
	case !set || value == "*":
		return fmt.Sprintf("all namespaces but kube-*; to restrict that, use --import-namespaces %s=...", remote)
	case value == "":
		return "no namespace"
	default:
		return strings.ReplaceAll(value, ",", ", ")
	}
}

// asked reports whether a bound comes from the remote's own report, and has to be confirmed.
func (a agreement) asked() bool {
	return slices.ContainsFunc(a.bounds, func(b bound) bool { return !b.given })
}

// agree compares the ranges that remotes report with a cluster's settings for them. It
// returns new bounds, and faults for ranges that aren't accepted. Reported ranges never widen
// an existing bound: a remote that has outgrown it is a warning.
func agree(f *inspect.Facts, remotes []remoteSettings) ([]agreement, []fault) {
	var all []agreement
	var faults []fault
	for i := range remotes {
		r := &remotes[i]
		a := agreement{cluster: f.Name, remote: string(r.name)}
		for _, b := range r.bounds(f.Installed.Settings) {
			have := f.Installed.Settings[r.name.Variables()+b.key]
			flag := fmt.Sprintf("%s %s=...", b.flag, r.name)
			switch {
			case len(b.prefixes) == 0:
			case b.given && have == join(b.prefixes):
			case b.given:
				a.bounds = append(a.bounds, b)
			case have == "" || b.moved:
				if why := b.refused(); why != "" {
					faults = append(faults, fault{cluster: string(r.name), what: "it reports " + b.what + " in " + shortened(b.prefixes) + ": " + why,
						remedy: "specify the ranges: " + flag})
					continue
				}
				a.bounds = append(a.bounds, b)
			case !inspect.Cover(f.Installed.Settings.Prefixes(r.name, b.key), b.prefixes):
				faults = append(faults, fault{cluster: f.Name, warning: true,
					what:   fmt.Sprintf("it accepts %s of %s only in %s, and %s has some in %s: those outside stay unreachable", b.what, r.name, have, r.name, shortened(b.prefixes)),
					remedy: "to accept more, use " + flag})
			}
		}
		if len(a.bounds) > 0 {
			all = append(all, a)
		}
	}
	return all, faults
}

// shortened formats the first prefixes of a list for people.
func shortened(prefixes []netip.Prefix) string {
	const most = 8
	if len(prefixes) > most {
		return join(prefixes[:most]) + fmt.Sprintf(" and %d more", len(prefixes)-most)
	}
	return join(prefixes)
}
