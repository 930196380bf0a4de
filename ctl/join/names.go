package join

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// unnamed returns the faults that keep a cluster with these settings from resolving names of
// services of other clusters.
func unnamed(f *inspect.Facts, wanted *manifests.Cluster) []fault {
	var faults []fault
	wrong := func(what, remedy string) { faults = append(faults, fault{cluster: f.Name, what: what, remedy: remedy}) }
	warn := func(what, remedy string) {
		faults = append(faults, fault{cluster: f.Name, what: what, remedy: remedy, warning: true})
	}
	dns := f.DNS
	if dns == nil {
		warn("kube-system has no CoreDNS", "for names such as web.shop.svc.cluster.gcp, run one with the server blocks of deploy/coredns/Corefile, and have your DNS forward these zones to it")
		return faults
	}
	if dns.Broken != nil {
		wrong(dns.Broken.Error(), "then join again")
		return faults
	}
	if dns.Invalid != nil {
		wrong(dns.Invalid.Error(), "correct it, then join again")
		return faults
	}
	all, err := zones(wanted)
	if err == nil {
		_, err = dns.Blocks(all)
	}
	if err != nil {
		wrong("names of services of other clusters: "+err.Error(), "give that cluster another name")
		return faults
	}
	if err := dns.Check(all); err != nil {
		wrong("CoreDNS: "+err.Error(), "correct its configuration, or add the server blocks by hand: join --output yaml writes them to a file")
		return faults
	}
	names := coredns.Names(all)
	for _, zone := range names {
		if dns.Foreign(zone) {
			warn("CoreDNS has a server block for "+zone+" that isn't from join, which leaves it unchanged", "compare it with deploy/coredns/Corefile, or remove it and join again")
		}
	}
	for _, pattern := range dns.Unseen {
		warn("CoreDNS imports "+pattern+", which isn't in a ConfigMap and can't be checked", "make sure that it has no server block for "+strings.Join(names, ", ")+": CoreDNS doesn't start with two for one zone")
	}
	switch owner := dns.Owner; {
	case owner.AtOnce:
		warn(fmt.Sprintf("%s sets the configuration of CoreDNS back %s, so join doesn't add the server blocks for %s", owner.Name, owner.When, strings.Join(names, ", ")),
			owner.Instead+" (join --output yaml writes them to a file)")
	case owner.Name != "":
		warn(fmt.Sprintf("%s sets back %s %s, and names of other clusters end then", owner.Name, dns.Target(), owner.When), owner.Instead)
	}
	if restart := dns.Restart(); !dns.Reloads && restart != "" {
		warn("CoreDNS doesn't use the plugin reload", "restart it afterwards, with a context of "+f.Name+": kubectl "+restart)
	}
	if missing := dns.NodeLocal.Missing(names); len(missing) > 0 {
		warn(fmt.Sprintf("pods ask NodeLocal DNSCache (DaemonSet %s/%s), which doesn't ask CoreDNS for %s", dns.NodeLocal.Namespace, dns.NodeLocal.Name, strings.Join(missing, ", ")),
			dns.NodeLocal.Remedy(missing))
	}
	return faults
}

// nameAll puts our server blocks into CoreDNS's configuration, or removes them where the
// mirror isn't installed.
func (a *installation) nameAll(ctx context.Context) error {
	return a.each(func(i int, c *cli.Cluster) error {
		if !slices.Contains(a.wanted[i].Tools, manifests.Mirror) {
			return a.name(ctx, c, nil)
		}
		all, err := zones(a.wanted[i])
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		return a.name(ctx, c, all)
	})
}

// name makes CoreDNS serve zones, and no others of ours.
func (a *installation) name(ctx context.Context, c *cli.Cluster, zones []coredns.Zone) error {
	changed, err := coredns.Write(ctx, c.Client, zones)
	if err != nil {
		return fmt.Errorf("%s: CoreDNS: %w", c.Name, err)
	}
	for _, name := range changed {
		if len(zones) == 0 {
			a.Done("%s: removed the server blocks for other clusters from ConfigMap %s", c.Name, name)
			continue
		}
		a.Done("%s: updated the server blocks for other clusters in ConfigMap %s", c.Name, name)
	}
	return nil
}
