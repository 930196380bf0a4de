package config

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

const (
	// firstListenPort is the default of the first remote; it increases by one per remote.
	firstListenPort = 51820
	// minMTU6 is the minimum MTU of an IPv6 link (RFC 8200).
	minMTU6 = 1280
)

// rawRemote is one remote cluster with its settings.
type rawRemote struct {
	Remote
	nameFrom string // origin of the name, for errors
	prefix   string // of the variables of settings
	settings []*setting
}

// newRawRemote returns a remote whose settings are unset.
func newRawRemote(name, nameFrom string) *rawRemote {
	r := &rawRemote{Remote: Remote{Name: name}, nameFrom: nameFrom, prefix: groupPrefix(name)}
	r.settings = remoteSettings(r.prefix, &r.Remote)
	return r
}

func remoteSettings(prefix string, r *Remote) []*setting {
	return append(inspect(prefix, &r.Access), inspect(prefix, r)...)
}

// groupPrefix returns the prefix of a remote's variables.
func groupPrefix(name string) string {
	return cluster.Name(name).Variables()
}

// of returns the setting of a field of r.
func (r *rawRemote) of(field any) *setting { return settingOf(r.settings, field) }

func (r *rawRemote) origin(field any) string { return r.of(field).origin }

// needs are the settings of remotes that a program uses.
type needs struct {
	wireguard     bool        // pod subnets are required, ports and MTUs are checked
	noAccess      func() bool // whether access to remotes isn't needed; nil: it is
	servicePrefix bool
}

// parse decodes the settings of one remote, at a position in the list.
func (r *rawRemote) parse(f *faults, position int, need needs) {
	r.ListenPort, r.ServicePrefix = firstListenPort+position, r.Name
	if need.noAccess == nil || !need.noAccess() || firstSet(r.access()) != nil {
		r.checkAccess(f)
	}
	fill(f, r.prefix, r.settings, &r.Access, &r.Remote)
	subnets := r.of(&r.PodSubnets)
	if subnets.set {
		r.PodSubnetsFrom = subnets.origin
	} else if need.wireguard {
		f.add(subnets.origin, "required: the pod subnets of %s, such as 10.4.0.0/16", r.Name)
	}
	r.checkSubnetMap(f)
	if six := slices.IndexFunc(r.PodSubnets, func(p netip.Prefix) bool { return p.Addr().Is6() }); six >= 0 && r.MTU > 0 && r.MTU < minMTU6 {
		f.add(r.origin(&r.MTU), "%d is less than %d, which IPv6 needs for %s", r.MTU, minMTU6, r.PodSubnets[six])
	}
	if need.servicePrefix {
		f.check(r.origin(&r.ServicePrefix), r.ServicePrefix, "service prefix")
	}
}

// access returns the settings of Access.
func (r *rawRemote) access() []*setting {
	a := &r.Access
	return []*setting{r.of(&a.Kubeconfig), r.of(&a.APIURL), r.of(&a.CAURL), r.of(&a.CAFile), r.of(&a.TokenFile), r.of(&a.CASHA256), r.of(&a.ProxyURL)}
}

// checkAccess checks that exactly one kind of access is configured, completely.
func (r *rawRemote) checkAccess(f *faults) {
	a := &r.Access
	kubeconfig, server, caURL, caFile := r.of(&a.Kubeconfig), r.of(&a.APIURL), r.of(&a.CAURL), r.of(&a.CAFile)
	token, pins, proxy := r.of(&a.TokenFile), r.of(&a.CASHA256), r.of(&a.ProxyURL)
	direct := firstSet([]*setting{server, caURL, caFile, token, pins, proxy})
	switch {
	case kubeconfig.set && direct == proxy && proxy.set:
		f.add(proxy.origin, "set together with %s: set proxy-url in the kubeconfig instead", kubeconfig.origin)
		return
	case kubeconfig.set && direct != nil:
		f.add(kubeconfig.origin, "set together with %s; access to %s needs only one of them", direct.origin, r.Name)
		return
	case kubeconfig.set:
		return
	case direct == nil:
		f.add(kubeconfig.origin, "required: a kubeconfig for %s; alternatively set %s, %s or %s, and %s", r.Name, server.origin, caURL.origin, caFile.origin, token.origin)
		return
	}
	if !server.set {
		f.add(server.origin, "required with %s: the https URL of the API server", direct.origin)
	}
	switch {
	case caURL.set && caFile.set:
		f.add(caURL.origin, "set together with %s; use one of them", caFile.origin)
	case !caURL.set && !caFile.set:
		f.add(caURL.origin, "required, or %s: the CA certificates of the API server", caFile.origin)
	}
	if pins.set {
		if !caURL.set {
			f.add(pins.origin, "has no effect without %s", caURL.origin)
		}
		pins.text = f.fingerprints(pins.origin, pins.text)
	}
	if !token.set {
		f.add(token.origin, "required with %s: the path of a token", direct.origin)
	}
}

// parseRemotes parses all remotes and checks them against each other and the
// local cluster.
func parseRemotes(f *faults, local string, raw []*rawRemote, need needs) []Remote {
	for i, r := range raw {
		r.parse(f, i, need)
	}
	checkNames(f, local, raw)
	checkSubnets(f, raw)
	remotes := make([]Remote, len(raw))
	for i, r := range raw {
		remotes[i] = r.Remote
		for _, other := range raw[:i] {
			if r.Name == other.Name {
				continue // reported by checkNames
			}
			if need.wireguard && r.ListenPort != 0 && r.ListenPort == other.ListenPort {
				f.add(r.origin(&r.ListenPort), "port %d of %s is also that of %s (%s)", r.ListenPort, r.Name, other.Name, other.origin(&other.ListenPort))
			}
			if need.servicePrefix && r.ServicePrefix == other.ServicePrefix {
				f.add(r.origin(&r.ServicePrefix), "prefix %q of %s is also that of %s (%s)", r.ServicePrefix, r.Name, other.Name, other.origin(&other.ServicePrefix))
			}
		}
	}
	return remotes
}

func checkNames(f *faults, local string, raw []*rawRemote) {
	seen := map[string]*rawRemote{}
	for _, r := range raw {
		before := len(f.all)
		if f.check(r.nameFrom, r.Name, "cluster"); len(f.all) > before {
			continue
		}
		if r.Name == local {
			f.add(r.nameFrom, "remote %q has the name of this cluster", r.Name)
		}
		// Names that differ can have the same variables: a-b and A_B.
		group := groupPrefix(r.Name)
		switch before := seen[group]; {
		case before == nil:
			seen[group] = r
		case before.Name == r.Name:
			f.add(r.nameFrom, "remote %q is listed twice", r.Name)
		default:
			f.add(r.nameFrom, "remotes %q and %q would share the variables %s_*", before.Name, r.Name, group)
		}
	}
}

// checkSubnets finds overlapping prefixes, of one remote or of two: the route to an
// address in both would be ambiguous.
func checkSubnets(f *faults, raw []*rawRemote) {
	type claim struct {
		prefix netip.Prefix
		remote *rawRemote
	}
	var claims []claim
	for _, r := range raw {
		for _, p := range r.PodSubnets {
			for _, c := range claims {
				switch {
				case !p.Overlaps(c.prefix):
				case c.remote == r:
					f.add(r.PodSubnetsFrom, "%s overlaps %s of the same list", p, c.prefix)
				case c.remote.Name != r.Name:
					f.add(r.PodSubnetsFrom, "%s overlaps %s of %s (%s)", p, c.prefix, c.remote.Name, c.remote.PodSubnetsFrom)
				}
			}
			claims = append(claims, claim{p, r})
		}
	}
}
