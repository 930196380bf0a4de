package status

import (
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// names adds lines for the clusters whose names a cluster with the service mirror doesn't
// resolve.
func (v *View) names(c *inspect.Cluster, all []*inspect.Cluster) {
	if _, installed := c.Workload(inspect.ServiceMirror); !installed || !c.Kubernetes.Known() {
		return
	}
	if !c.DNS.Known() {
		v.unknown(c.Name, "%s: CoreDNS's configuration: %s", c.Name, c.DNS.Err)
		return
	}
	dns := c.DNS.Value
	if dns == nil {
		v.unknown(c.Name, "%s: names of other clusters: kube-system has no CoreDNS", c.Name)
		return
	}
	if twice := dns.Twice(); len(twice) > 0 || dns.Invalid != nil {
		v.wrong(c.Name, "%s: CoreDNS can't load its configuration, and won't start again", c.Name)
	}
	zones := []string{}
	for _, other := range all {
		if zone := "cluster." + other.Name; other != c && dns.Serves(zone) {
			zones = append(zones, zone)
		} else if other != c {
			v.wrong(c.Name, "%s: CoreDNS serves no names of %s", c.Name, other.Name)
		}
	}
	if missing := dns.NodeLocal.Missing(slices.Compact(zones)); len(missing) > 0 {
		v.wrong(c.Name, "%s: NodeLocal DNSCache doesn't ask CoreDNS for %s", c.Name, strings.Join(missing, ", "))
	}
}
