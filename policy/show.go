package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// StatusCommand is "semaphore-policy status".
func StatusCommand() report.Command[statuspage.Policy] {
	return report.Command[statuspage.Policy]{Program: "semaphore-policy", Address: ":8081", Show: showReport}
}

// showReport shows remotes, their sets and skipped pods.
func showReport(p *report.Page, rep *statuspage.Policy) {
	p.Line("semaphore-policy %s", rep.Version)
	p.Line("cluster %s, Calico's API %s", rep.Cluster, rep.CalicoAPI)
	p.Replica(rep.Leading, rep.Leader, "failures", rep.ElectionError)
	for _, cluster := range slices.Sorted(maps.Keys(rep.Unconfigured)) {
		show, fate := p.Line, "left alone"
		if at, goes := rep.RemovedAt[cluster]; goes {
			// They still let its pods in.
			show, fate = p.Wrong, fmt.Sprintf("removed in %v", max(0, time.Until(at)).Round(time.Second))
		}
		show("%d sets are of cluster %s, which is not configured: %s", rep.Unconfigured[cluster], cluster, fate)
	}
	p.Failures(rep.NotServed)
	p.Watch("network sets", rep.Sets.Synced, rep.Sets.LastContact, rep.Sets.Error)
	tokens.Show(p, rep.Credentials, func(remote string) bool {
		return slices.ContainsFunc(rep.Remotes, func(r statuspage.PolicyRemote) bool { return r.Name == remote && r.API.Error != "" })
	})
	if rep.Pools.Unknown != "" {
		p.Line("Calico's IP pools for remote subnets: unknown: %s", rep.Pools.Unknown)
	}
	for _, remote := range slices.Sorted(maps.Keys(rep.Pools.Faults)) {
		for _, fault := range rep.Pools.Faults[remote] {
			p.Wrong("remote %s: %s", remote, fault)
		}
	}

	remotes := p.Table("REMOTE", "CONTACT", "PODS", "SETS", "ADDRESSES", "SKIPPED", "WAITING", "FAILING")
	sets := p.Table("REMOTE", "NAMESPACE", "NAME", "ADDRESSES", "SET")
	skipped := p.Table("REMOTE", "SKIPPED PODS", "REASON", "EXAMPLES")
	failing := p.Table("REMOTE", "FAILING SET", "ERROR")
	for i := range rep.Remotes {
		r := &rep.Remotes[i]
		showRemote(p, remotes, r)
		for _, s := range r.Sets {
			sets.Row(r.Name, s.Namespace, s.Name, strconv.Itoa(s.Addresses), s.Object)
		}
		for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
			pods := r.Skipped[reason]
			skipped.Row(r.Name, strconv.Itoa(pods.Pods), reason, strings.Join(pods.Examples, ", "))
			// Both are temporary: the pod is starting or ending.
			if why := Reason(reason); why != ReasonFinished && why != ReasonNoAddress {
				p.Wrong("remote %s: %d pods are skipped: %s", r.Name, pods.Pods, reason)
			}
		}
		for _, object := range slices.Sorted(maps.Keys(r.Failing)) {
			failing.Row(r.Name, object, r.Failing[object])
		}
		for j := range r.Overridden {
			p.Wrong("remote %s: %s", r.Name, r.Overridden[j].String())
		}
	}
}

func showRemote(p *report.Page, t *report.Table, r *statuspage.PolicyRemote) {
	addresses, skipped := 0, 0
	for _, s := range r.Sets {
		addresses += s.Addresses
	}
	for _, pods := range r.Skipped {
		skipped += pods.Pods
	}
	t.Row(r.Name, p.Age(r.API.LastContact), strconv.Itoa(r.Pods), strconv.Itoa(len(r.Sets)), strconv.Itoa(addresses),
		strconv.Itoa(skipped), strconv.Itoa(r.Pending), strconv.Itoa(len(r.Failing)))

	what := "remote " + r.Name
	p.Watch(what+": pods", r.API.Synced, r.API.LastContact, r.API.Error)
	if r.PodSubnetsMap != "" {
		p.Line("%s: its pods are known by other addresses: %s", what, r.PodSubnetsMap)
	}
	if r.Stale {
		p.Wrong("%s: its sets are empty, because it has been out of contact for too long", what)
	}
	if len(r.Failing) > 0 {
		p.Wrong("%s: sets can't be written: %s", what, report.Some(slices.Sorted(maps.Keys(r.Failing))))
	}
}
