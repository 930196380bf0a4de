package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// firstListenPort is that of the first remote; others count up from it.
	firstListenPort = 51820
	// minMTU is the least that IPv4 hosts must be able to put together
	// (RFC 791), minMTU6 the least that an IPv6 link must carry (RFC 8200).
	minMTU, minMTU6 = 576, 1280
	// maxMTU leaves room in the largest packet for the headers of IPv6 (40
	// bytes), UDP (8) and WireGuard (32).
	maxMTU = 65535 - 80
	// minAnswer is the most that one object has, and some more.
	minAnswer, maxAnswer = 4 << 20, 64 << 30
	maxObjects           = 10_000_000
	// maxPeers is what a device takes (the kernel's MAX_PEERS_PER_DEVICE and
	// wireguard-go's MaxPeers are 2^20 and 2^16).
	maxPeers = 1 << 16
)

// rawRemote is one remote cluster as it was written.
type rawRemote struct {
	name     string
	nameFrom string // origin of the name, for faults
	vars     remoteVars
	settings []*setting // the fields of vars
}

// newRawRemote reads the variables of one remote.
func newRawRemote(name, nameFrom string, lookup func(string) (string, bool)) (*rawRemote, error) {
	r := &rawRemote{name: name, nameFrom: nameFrom}
	var err error
	r.settings, err = read(groupPrefix(name), &r.vars, lookup)
	return r, err
}

// groupPrefix returns what the variables of a remote start with.
func groupPrefix(name string) string {
	return prefix + "_REMOTE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// of returns the setting that a field of r.vars belongs to.
func (r *rawRemote) of(field *string) *setting {
	for _, s := range r.settings {
		if s.value == field {
			return s
		}
	}
	return &setting{origin: r.nameFrom, value: field}
}

func (r *rawRemote) origin(field *string) string { return r.of(field).origin }

// needs says which of a remote's settings a program uses.
type needs struct {
	wireguard     bool // pod subnets are required, ports and MTUs matter
	servicePrefix bool
}

// parse turns one remote, at a position in the list, into its typed form.
func (r *rawRemote) parse(f *faults, position int, need needs) Remote {
	fillDefaults(r.settings)
	v := &r.vars
	remote := Remote{
		Name:         r.name,
		Access:       r.access(f),
		ResyncPeriod: f.duration(r.origin(&v.ResyncPeriod), v.ResyncPeriod),
		StaleAfter:   f.duration(r.origin(&v.StaleAfter), v.StaleAfter),
	}
	remote.MaxAnswer = f.bytes(r.origin(&v.MaxAnswer), v.MaxAnswer, minAnswer, maxAnswer)
	if v.MaxObjects != "" {
		remote.MaxObjects = f.integer(r.origin(&v.MaxObjects), v.MaxObjects, 1, maxObjects)
	}
	remote.MaxServices = f.integer(r.origin(&v.MaxServices), v.MaxServices, 1, maxObjects)
	remote.MaxSlices = f.integer(r.origin(&v.MaxSlices), v.MaxSlices, 1, maxObjects)
	remote.MaxAddresses = f.integer(r.origin(&v.MaxAddresses), v.MaxAddresses, 1, maxObjects)
	remote.MaxSets = f.integer(r.origin(&v.MaxSets), v.MaxSets, 1, maxObjects)
	if v.PodSubnets != "" {
		remote.PodSubnetsFrom = r.origin(&v.PodSubnets)
		remote.PodSubnets = f.subnets(remote.PodSubnetsFrom, v.PodSubnets, "pods")
	} else if need.wireguard {
		f.add(r.origin(&v.PodSubnets), "required: the pod subnets of %s, as in 10.4.0.0/16", r.name)
	}
	if v.NodeSubnets != "" {
		remote.NodeSubnets = f.subnets(r.origin(&v.NodeSubnets), v.NodeSubnets, "nodes")
	}
	if v.WG.ListenPort == "" {
		v.WG.ListenPort = strconv.Itoa(firstListenPort + position)
	}
	remote.ListenPort = f.integer(r.origin(&v.WG.ListenPort), v.WG.ListenPort, 1, 65535)
	remote.MaxPeers = f.integer(r.origin(&v.WG.MaxPeers), v.WG.MaxPeers, 1, maxPeers)
	if !strings.EqualFold(v.WG.MTU, "auto") {
		remote.MTU = f.integer(r.origin(&v.WG.MTU), v.WG.MTU, minMTU, maxMTU)
	}
	if six := slices.IndexFunc(remote.PodSubnets, func(p netip.Prefix) bool { return p.Addr().Is6() }); six >= 0 &&
		remote.MTU > 0 && remote.MTU < minMTU6 {
		f.add(r.origin(&v.WG.MTU), "%d is less than %d, which IPv6 needs for %s", remote.MTU, minMTU6, remote.PodSubnets[six])
	}
	remote.ServicePrefix = cmp.Or(v.ServicePrefix, r.name)
	if need.servicePrefix {
		origin := r.origin(&v.ServicePrefix)
		// It starts the name of a Service, and so with a letter.
		f.valid(origin, remote.ServicePrefix, validation.IsDNS1035Label)
		if remote.ServicePrefix == globalPrefix {
			f.add(origin, "%q is what the names of global services start with", globalPrefix)
		}
	}
	return remote
}

// globalPrefix starts the names of global services.
const globalPrefix = "gl"

func (r *rawRemote) access(f *faults) Access {
	v := &r.vars
	direct := []*string{&v.API.URL, &v.CA.URL, &v.CA.File, &v.TokenFile, &v.CA.SHA256}
	given := slices.IndexFunc(direct, func(field *string) bool { return *field != "" })
	switch {
	case v.Kubeconfig != "" && given >= 0:
		f.add(r.origin(&v.Kubeconfig), "set together with %s; access to %s needs one or the other", r.origin(direct[given]), r.name)
		return Access{}
	case v.Kubeconfig != "":
		return Access{Kubeconfig: v.Kubeconfig}
	case given < 0:
		f.add(r.origin(&v.Kubeconfig), "required: a kubeconfig for %s; or set %s, %s or %s, and %s", r.name,
			r.origin(&v.API.URL), r.origin(&v.CA.URL), r.origin(&v.CA.File), r.origin(&v.TokenFile))
		return Access{}
	}
	access := Access{CAFile: v.CA.File, TokenFile: v.TokenFile}
	if v.API.URL == "" {
		f.add(r.origin(&v.API.URL), "required with %s: the https address of the API server", r.origin(direct[given]))
	} else {
		access.APIURL = f.httpsURL(r.origin(&v.API.URL), v.API.URL)
	}
	switch {
	case v.CA.URL != "" && v.CA.File != "":
		f.add(r.origin(&v.CA.URL), "set together with %s; use one of them", r.origin(&v.CA.File))
	case v.CA.URL != "":
		access.CAURL = f.httpsURL(r.origin(&v.CA.URL), v.CA.URL)
	case v.CA.File == "":
		f.add(r.origin(&v.CA.URL), "required, or %s: what the certificate of the API server is verified with", r.origin(&v.CA.File))
	}
	if v.CA.SHA256 != "" {
		if v.CA.URL == "" {
			f.add(r.origin(&v.CA.SHA256), "has no effect without %s", r.origin(&v.CA.URL))
		}
		access.CASHA256 = f.fingerprints(r.origin(&v.CA.SHA256), v.CA.SHA256)
	}
	if v.TokenFile == "" {
		f.add(r.origin(&v.TokenFile), "required with %s: the path of a token", r.origin(direct[given]))
	}
	return access
}

// parseRemotes parses all remotes and checks them against each other and the
// local cluster.
func parseRemotes(f *faults, local string, raw []*rawRemote, need needs) []Remote {
	remotes := make([]Remote, 0, len(raw))
	for i, r := range raw {
		remotes = append(remotes, r.parse(f, i, need))
	}
	checkNames(f, local, raw)
	checkSubnets(f, raw, remotes)
	for i, r := range raw {
		for j, other := range raw[:i] {
			if r.name == other.name {
				continue // the name is the fault
			}
			if port := remotes[i].ListenPort; need.wireguard && port != 0 && port == remotes[j].ListenPort {
				f.add(r.origin(&r.vars.WG.ListenPort), "port %d of %s is that of %s too (%s)",
					port, r.name, other.name, other.origin(&other.vars.WG.ListenPort))
			}
			if start := remotes[i].ServicePrefix; need.servicePrefix && start == remotes[j].ServicePrefix {
				f.add(r.origin(&r.vars.ServicePrefix), "prefix %q of %s is that of %s too (%s)",
					start, r.name, other.name, other.origin(&other.vars.ServicePrefix))
			}
		}
	}
	return remotes
}

func checkNames(f *faults, local string, raw []*rawRemote) {
	seen := map[string]*rawRemote{}
	for _, r := range raw {
		if f.valid(r.nameFrom, r.name, validation.IsDNS1123Label) == "" {
			continue
		}
		if r.name == local {
			f.add(r.nameFrom, "remote %q is named like this cluster", r.name)
		}
		// The variables' names, which is also where equal names meet.
		group := groupPrefix(r.name)
		switch before := seen[group]; {
		case before == nil:
			seen[group] = r
		case before.name == r.name:
			f.add(r.nameFrom, "remote %q is listed twice", r.name)
		default:
			f.add(r.nameFrom, "remotes %q and %q would share the variables %s_*", before.name, r.name, group)
		}
	}
}

// checkSubnets finds prefixes that overlap, inside one remote or between two:
// an address in both would have two ways to go.
func checkSubnets(f *faults, raw []*rawRemote, remotes []Remote) {
	type claim struct {
		prefix netip.Prefix
		remote *rawRemote
	}
	var claims []claim
	for i, remote := range remotes {
		for _, p := range remote.PodSubnets {
			for _, c := range claims {
				if p.Overlaps(c.prefix) && (c.remote == raw[i] || c.remote.name != raw[i].name) {
					f.add(raw[i].origin(&raw[i].vars.PodSubnets), "%s overlaps %s", p, where(c.prefix, c.remote, raw[i]))
				}
			}
			claims = append(claims, claim{p, raw[i]})
		}
	}
}

func where(p netip.Prefix, r, reader *rawRemote) string {
	if r == reader {
		return fmt.Sprintf("%s of the same list", p)
	}
	return fmt.Sprintf("%s of %s (%s)", p, r.name, r.origin(&r.vars.PodSubnets))
}
