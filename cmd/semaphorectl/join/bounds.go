package join

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
)

// A bound is a setting that says what a cluster takes from a remote: addresses of pods
// that are routed into its tunnel, and of nodes that packets of the tunnel are sent to.
type bound struct {
	key, flag, what string
	prefixes        []netip.Prefix
	given           bool // by the administrator; otherwise they are the remote's own answers
	most            most
}

// most is how much of a remote's own answers is taken: so many prefixes, and as many
// addresses in all as a prefix of this length has.
type most struct{ prefixes, bits4, bits6 int }

// bounds are those of a remote. Its own answers are taken the first time only, and only as
// far as clusters are known to need: kops has pods in a /11, kubeadm in a /48; ranges of
// nodes are made of addresses, with room for more nodes.
func (s *side) bounds() []bound {
	return []bound{
		{facts.PodSubnets, "--pod-subnets", "pods", s.pods, s.podsGiven, most{16, 11, 48}},
		{facts.NodeSubnets, "--node-subnets", "nodes", s.machines, s.machinesGiven, most{8, 14, 62}},
	}
}

// private are the ranges that a remote may name by itself (RFC 1918, RFC 6598, RFC 4193).
func private() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
	}
}

// refused says why prefixes of a remote's own answers don't become a bound; empty: they do.
func (b *bound) refused() string {
	if len(b.prefixes) > b.most.prefixes {
		return fmt.Sprintf("are %d ranges, more than %d", len(b.prefixes), b.most.prefixes)
	}
	var all4, all6 float64 // addresses, as a part of what there may be
	for _, p := range b.prefixes {
		if !facts.Cover(private(), []netip.Prefix{p}) {
			return "has " + p.String() + ", and that isn't inside a private range (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7)"
		}
		if p.Addr().Is4() {
			all4 += math.Ldexp(1, b.most.bits4-p.Bits())
		} else {
			all6 += math.Ldexp(1, b.most.bits6-p.Bits())
		}
	}
	switch {
	case all4 > 1:
		return fmt.Sprintf("has more addresses than a /%d", b.most.bits4)
	case all6 > 1:
		return fmt.Sprintf("has more addresses than a /%d", b.most.bits6)
	}
	return ""
}

// agreement is what one cluster is going to take from another one that it hasn't taken so
// far.
type agreement struct {
	cluster, remote string
	bounds          []bound
}

// lines say it to the administrator. What a remote has named itself has a line of its own
// that is short enough to be printed whole.
func (a agreement) lines() []string {
	lines := []string{fmt.Sprintf("%s takes from %s, and nothing else:", a.cluster, a.remote)}
	for _, b := range a.bounds {
		by := "by its own word"
		if b.given {
			by = "as you say"
		}
		lines = append(lines, fmt.Sprintf("  %s in %s (%s)", b.what, join(b.prefixes), by))
	}
	return lines
}

// asked says whether something of it is the remote's own answer.
func (a agreement) asked() bool {
	return slices.ContainsFunc(a.bounds, func(b bound) bool { return !b.given })
}

// agree holds what remotes say of themselves against what a cluster has for them. New
// bounds are returned, and faults where they can't be taken from the remotes' answers.
// What is there is never widened by these: where a remote has outgrown it, that is a
// warning.
func agree(f *facts.Facts, remotes []side) ([]agreement, []fault) {
	var all []agreement
	var faults []fault
	for i := range remotes {
		r := &remotes[i]
		a := agreement{cluster: f.Name, remote: string(r.name)}
		for _, b := range r.bounds() {
			have := f.Installed.Settings[r.name.Variables()+b.key]
			flag := fmt.Sprintf("%s %s=...", b.flag, r.name)
			switch {
			case len(b.prefixes) == 0:
			case b.given && have == join(b.prefixes):
			case b.given:
				a.bounds = append(a.bounds, b)
			case have == "":
				if why := b.refused(); why != "" {
					faults = append(faults, fault{cluster: string(r.name), what: b.what + " are in " + shortened(b.prefixes) + ", by its own word, which " + why,
						remedy: "say which they may be: " + flag})
					continue
				}
				a.bounds = append(a.bounds, b)
			case !facts.Cover(f.Installed.Settings.Prefixes(r.name, b.key), b.prefixes):
				faults = append(faults, fault{cluster: f.Name, warning: true,
					what:   fmt.Sprintf("it takes %s of %s in %s only, and %s has some in %s: those outside stay unreachable", b.what, r.name, have, r.name, shortened(b.prefixes)),
					remedy: "when it should take more, say " + flag})
			}
		}
		if len(a.bounds) > 0 {
			all = append(all, a)
		}
	}
	return all, faults
}

// shortened is a list of prefixes for people.
func shortened(prefixes []netip.Prefix) string {
	const most = 8
	if len(prefixes) > most {
		return join(prefixes[:most]) + fmt.Sprintf(" and %d more", len(prefixes)-most)
	}
	return join(prefixes)
}
