package join

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// maxServices returns how many Services a cluster may have for its remotes: a quarter of the
// ClusterIPs of the family that has fewer; 0: its service ranges are unknown, or too small.
func maxServices(ranges []netip.Prefix) int {
	all := map[bool]float64{} // by whether they are of IPv4
	for _, p := range ranges {
		bits := p.Addr().BitLen() - p.Bits()
		if p.Addr().Is6() {
			bits = min(bits, 16) // Before Kubernetes 1.33 no more of a range are used.
		}
		all[p.Addr().Is4()] += max(0, math.Ldexp(1, bits)-2) // without the first and the last one
	}
	few := math.Inf(1)
	for _, n := range all {
		few = min(few, n)
	}
	if few == math.Inf(1) {
		return 0
	}
	return int(min(few/4, inspect.MostServices))
}

// crowded returns a warning if the Services of all remotes may take more ClusterIPs of a cluster
// than they should.
func crowded(f *inspect.Facts, settings inspect.Settings) []fault {
	may, _ := strconv.Atoi(settings[inspect.MaxServices]) // The mirror refuses an invalid one.
	most := maxServices(f.Services)
	if most == 0 || may <= most {
		return nil
	}
	return []fault{{cluster: f.Name, warning: true,
		what: fmt.Sprintf("the mirror may make %d Services for all remotes together, and a quarter of %s is %d: when they take the other ClusterIPs, no Service of this cluster gets one",
			may, shortened(f.Services), most),
		remedy: fmt.Sprintf("set %s to %d in its settings", inspect.MaxServices, most)}}
}
