package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// statusCommand is "semaphore-wireguard status".
func statusCommand() report.Command[statuspage.Agent] {
	return report.Command[statuspage.Agent]{Program: "semaphore-wireguard", Address: "127.0.0.1:7774", Show: showReport}
}

// showReport shows remotes, peers and rejections.
func showReport(p *report.Page, rep *statuspage.Agent) {
	p.Line("semaphore-wireguard %s", rep.Version)
	p.Line("cluster %s, node %s", rep.Cluster, rep.Node)
	if rep.Standby != nil {
		p.Unknown("this agent stands by, another agent of this node is active: %s", cmp.Or(rep.Standby.Holder, "unknown"))
	}
	if !rep.Published && rep.Standby == nil {
		p.Wrong("the node object of %s does not have all keys and endpoints of this agent", rep.Node)
	}
	showConditions(p, rep)
	if !rep.Local {
		p.Unknown("addresses of this cluster not read yet: endpoints of remote nodes can't be checked against them")
	}
	showRelay(p, rep)
	showPods(p, rep.Pods)
	showFilter(p, rep.Filter)
	showExit(p, rep)
	showTranslation(p, rep.Translation)
	if rep.Unsourced != "" {
		p.Line("%s", hostLine(rep.Unsourced))
	}
	if rep.Networkd {
		p.Wrong("systemd-networkd removes rules and routes of the agent when it starts: 10-semaphore.conf isn't in /etc/systemd/networkd.conf.d")
	}
	showForwarding(p, &rep.Forwarding)
	tokens.Show(p, rep.Credentials, func(remote string) bool {
		return slices.ContainsFunc(rep.Remotes, func(r statuspage.Remote) bool { return r.Name == remote && r.API.Error != "" })
	})
	remotes := p.Table("REMOTE", "CONTACT", "PEERS FROM", "DEVICE", "BACKEND", "PORT", "MTU", "UP", "CONNECTING", "WAITING", "SILENT", "DOWN", "REJECTED", "FORGED", "STOPPED")
	nodes := p.Table("REMOTE", "NODE", "ENDPOINT", "HEALTH", "SINCE", "SIGN", "HANDSHAKE", "HEARD", "RECEIVED", "SENT", "POD CIDRS")
	rejected := p.Table("REMOTE", "REJECTED NODE", "WHAT", "REASON", "DETAIL")
	for i := range rep.Remotes {
		r := &rep.Remotes[i]
		showRemote(p, remotes, r, rep.RemotesFrom == config.RemotesFromRelay)
		showStopped(p, r)
		showPeers(p, nodes, r)
		for _, no := range r.Rejected {
			what := "node"
			if no.Partial {
				what = "prefix"
			}
			rejected.Row(r.Name, no.Node, what, no.Reason, no.Detail)
		}
	}
}

// showConditions shows what fails, once for each part, and what isn't known yet.
func showConditions(p *report.Page, rep *statuspage.Agent) {
	failing, pending := map[string]string{}, []string(nil)
	for _, c := range rep.Conditions {
		if c.Type == statuspage.Pending {
			pending = append(pending, c.Object)
		} else {
			failing[c.Object] = c.Message
		}
	}
	p.Failures(failing)
	if len(pending) > 0 {
		p.Unknown("not completed since start: %s", strings.Join(pending, ", "))
	}
	if rep.Conditions == nil {
		p.Unknown("the agent doesn't report whether it fails: it is of another release")
	}
}

// showRelay shows what semaphore-relay says about its contact with the clusters. Without it, and
// while a remote is silent, the last known nodes stay.
func showRelay(p *report.Page, rep *statuspage.Agent) {
	for _, cluster := range slices.Sorted(maps.Keys(rep.Relay)) {
		if c := rep.Relay[cluster]; c.Error != "" {
			p.Unknown("Lease of semaphore-relay for %s: %s", cluster, c.Error)
		}
	}
	if own := rep.Relay[rep.Cluster]; own.Late {
		p.Wrong("semaphore-relay is gone: its last contact with this cluster was %s", p.Age(own.Renewed))
		return
	}
	for i := range rep.Remotes {
		if c := rep.Relay[rep.Remotes[i].Name]; c.Late {
			p.Wrong("remote %s is silent: last contact of semaphore-relay: %s", rep.Remotes[i].Name, p.Age(c.Renewed))
		}
	}
}

// showPods shows the pod prefixes of the node and their source.
func showPods(p *report.Page, pods *statuspage.Pods) {
	if pods == nil || pods.Source == "" {
		p.Unknown("source of this node's pod prefixes not decided yet")
		return
	}
	switch {
	case !pods.Known:
		p.Unknown("pod prefixes of this node not read yet, by %s: %s", pods.Source, pods.Why)
	case pods.Count == 0:
		p.Line("pods of this node: no prefixes, by %s: %s", pods.Source, pods.Why)
	default:
		p.Line("pods of this node: %s, by %s: %s", report.Some(pods.Prefixes), pods.Source, pods.Why)
	}
}

// showFilter reports when packets with forged sources are not dropped. The reason is
// shown with the failing loop.
func showFilter(p *report.Page, f statuspage.Filter) {
	switch f.State {
	case statuspage.FilterEnforced:
	case statuspage.FilterOff:
		p.Line("source filter off")
	case statuspage.FilterUnknown:
		p.Failing("source filter", f.Error)
	default:
		p.Wrong("plaintext packets with a remote pod's source address are not dropped")
	}
}

// showForwarding shows why packets of pods aren't forwarded.
func showForwarding(p *report.Page, f *statuspage.Forwarding) {
	if len(f.Off) > 0 {
		p.Wrong("this host doesn't forward packets between its pods and tunnels: %s", report.Some(f.Off))
	}
}

// showExit reports when packets to remote pods could leave in plaintext, and the remotes
// whose packets are refused.
func showExit(p *report.Page, rep *statuspage.Agent) {
	switch rep.Exit.State {
	case statuspage.FilterEnforced:
	case statuspage.FilterUnknown:
		p.Failing("exit filter", rep.Exit.Error)
	default:
		p.Wrong("packets to remote pods that another program leads past the tunnel are not dropped: only routes and policy rules keep them from leaving in plaintext")
	}
	if r := rep.Removed; r != nil {
		p.Line("pod subnets that are no longer configured: packets to %s are refused until %s, %s were",
			report.Some(r.PodSubnets), r.Until.UTC().Format(time.RFC3339), packets(r.Stopped))
	}
}

// showTranslation shows how other clusters know the pods of this one.
func showTranslation(p *report.Page, t *statuspage.Translation) {
	if t == nil {
		return
	}
	switch t.State {
	case statuspage.FilterEnforced:
	case statuspage.FilterUnknown:
		p.Failing("translation of pod subnets", t.Error)
	default:
		p.Wrong("addresses of pods are not translated: packets to remote pods are refused")
	}
	p.Line("other clusters know pods of this one by %s", t.Map)
	if t.State == statuspage.FilterEnforced && !t.OwnPods {
		p.Line("pods of this cluster don't reach each other by virtual addresses: the kernel lacks NAT of prefixes (Linux 5.8)")
	}
	if t.Untranslated != nil && *t.Untranslated > 0 {
		p.Line("%d packets were dropped because they were not translated", *t.Untranslated)
	}
}

// showStopped shows what the exit filter has dropped.
func showStopped(p *report.Page, r *statuspage.Remote) {
	if at := r.LastStopped; r.Stopping {
		p.Wrong("remote %s: %s packets to its pods were dropped because they would have left in plaintext, the last of them %s", r.Name, packets(r.Stopped), p.Age(at))
	}
}

// packets formats a count of packets that a filter has dropped.
func packets(packets *uint64) string {
	if packets == nil {
		return "-"
	}
	return strconv.FormatUint(*packets, 10)
}

func showRemote(p *report.Page, t *report.Table, r *statuspage.Remote, relayed bool) {
	from, server := r.Source, "API server"
	if relayed {
		server = "semaphore-relay's objects"
		if from == string(peers.OriginAPI) {
			from = "relay"
		}
	}
	count := map[paths.Health]int{}
	for i := range r.Peers {
		count[paths.Health(r.Peers[i].Health)]++
	}
	t.Row(r.Name, p.Age(r.API.LastContact), from, r.Device.Name, r.Device.Backend,
		strconv.Itoa(r.Device.ListenPort), strconv.Itoa(r.Device.MTU),
		strconv.Itoa(count[paths.HealthUp]), strconv.Itoa(count[paths.HealthConnecting]), strconv.Itoa(count[paths.HealthWaiting]),
		strconv.Itoa(count[paths.HealthSilent]), strconv.Itoa(count[paths.HealthDown]),
		strconv.Itoa(len(r.Rejected)), packets(r.Forged), packets(r.Stopped))

	what := "remote " + r.Name
	if r.Refused != "" {
		p.Failing(what+" is refused", r.Refused)
		return
	}
	switch {
	case r.API.Error != "":
		p.Failing(what+": "+server, r.API.Error)
	case !r.API.Synced:
		p.Wrong("%s: its nodes have not been read since start", what)
	default:
		p.Contact(what, r.API.LastContact)
	}
	source := peers.Origin(r.Source)
	switch {
	case r.Device.Error != "":
		p.Failing(what+": device "+r.Device.Name, r.Device.Error)
	case r.API.Synced && source != peers.OriginAPI:
		p.Unknown("%s: its nodes are not configured as peers yet", what)
	case source == peers.OriginAPI && len(r.Peers) == 0:
		p.Wrong("%s: none of its nodes is a peer", what)
	}
	if d := &r.Device; d.LargestMTU > 0 && d.MTU > d.LargestMTU {
		p.Wrong("%s: an MTU of %d exceeds the path to %s, which fragments: %d fits", what, d.MTU, d.NarrowestEndpoint, d.LargestMTU)
	}
	var disputed []string
	for i := range r.Peers {
		if peer := &r.Peers[i]; peer.Disputed != "" {
			disputed = append(disputed, fmt.Sprintf("%s (%s)", peer.Node, peer.Disputed))
		}
	}
	if len(disputed) > 0 {
		p.Wrong("%s: nodes of this cluster claim the endpoints of peers, which stay: %s", what, report.Some(disputed))
	}
	if len(r.Rejected) > 0 {
		names := make([]string, len(r.Rejected))
		for i := range r.Rejected {
			names[i] = r.Rejected[i].Node
		}
		p.Wrong("%s: rejected, in whole or in part: %s", what, report.Some(slices.Compact(names)))
	}
}

// showPeers shows the peers of a remote, those with the worst health first.
func showPeers(p *report.Page, t *report.Table, r *statuspage.Remote) {
	urgency := paths.Healths()
	sorted := slices.SortedFunc(slices.Values(r.Peers), func(a, b statuspage.Peer) int {
		return cmp.Or(cmp.Compare(slices.Index(urgency, paths.Health(a.Health)), slices.Index(urgency, paths.Health(b.Health))),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.PublicKey, b.PublicKey))
	})
	names := map[paths.Health][]string{}
	var narrow, oneWay, unanswered []string
	for i := range sorted {
		peer := &sorted[i]
		// A peer of an earlier process whose node isn't known yet.
		name := cmp.Or(peer.Node, "key "+peer.PublicKey)
		since, sign := "-", "-"
		if peer.Path != nil {
			since, sign = p.Age(&peer.Path.Since), peer.Path.Sign
			if peer.Path.SmallOnly {
				narrow = append(narrow, name)
			}
		}
		t.Row(r.Name, name, peer.Endpoint, peer.Health, since, sign, p.Age(peer.LastHandshake), p.Age(peer.LastHeard),
			report.Bytes(peer.RxBytes), report.Bytes(peer.TxBytes), strings.Join(podCIDRs(peer.AllowedIPs), ","))
		switch {
		case sign == string(paths.SignOneWay):
			oneWay = append(oneWay, name)
		case sign == string(paths.SignNoAnswer):
			unanswered = append(unanswered, name)
		default:
			names[paths.Health(peer.Health)] = append(names[paths.Health(peer.Health)], name)
		}
	}
	say := func(how func(string, ...any), what string, few []string) {
		if len(few) > 0 {
			how("remote %s: "+what+" %d of %d peers: %s", r.Name, len(few), len(sorted), report.Some(few))
		}
	}
	say(p.Wrong, "no session with", names[paths.HealthDown])
	say(p.Wrong, "no more answers from", unanswered)
	say(p.Wrong, "packets arrive from but do not reach (one way)", oneWay)
	say(p.Wrong, "only small packets reach", narrow)
	say(p.Unknown, "no session yet with", names[paths.HealthConnecting])
	say(p.Unknown, "no endpoint and nothing received yet from", names[paths.HealthWaiting])
	say(p.Unknown, "nothing received lately from", names[paths.HealthSilent])
	if d := &r.Device; d.Unprobed != "" {
		p.Line("remote %s: its nodes can't be probed, so a lost node is detected only after minutes: %s", r.Name, d.Unprobed)
	}
}

// podCIDRs returns a peer's allowed IPs without its link-local address for probes.
func podCIDRs(allowedIPs []string) []string {
	return slices.DeleteFunc(slices.Clone(allowedIPs), func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p.Addr().IsLinkLocalUnicast()
	})
}
