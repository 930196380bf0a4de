package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// guard returns how to test network policies in a cluster, or why they can't be tested, and
// the state of that.
func guard(ctx context.Context, c *cli.Cluster, survey *inspect.Cluster) (g *probe.Guard, state State, why string) {
	if err := survey.Unread(); err != nil {
		return nil, Unknown, err.Error()
	}
	settings := survey.Settings.Value
	if _, installed := survey.Workload(inspect.NetworkPolicy); !installed {
		return nil, Skipped, "semaphore-policy isn't installed"
	}
	api, err := kube.DetectCalico(ctx, c.Client.Discovery().RESTClient(), kube.CalicoAPIs(cmp.Or(settings["SEMAPHORE_POLICY_CALICO_API"], "auto")))
	switch {
	case err != nil:
		return nil, Unknown, err.Error()
	case api.Empty():
		return nil, Skipped, "Calico isn't installed"
	}
	g = &probe.Guard{
		API:    api,
		Domain: settings.LabelDomain(),
	}
	for _, remote := range settings.Remotes() {
		g.Remotes = append(g.Remotes, string(remote))
	}
	lacking, err := c.Lacks(ctx, g.Rights())
	if err != nil {
		return nil, Unknown, err.Error()
	}
	if lacking != "" {
		return nil, Unknown, fmt.Sprintf("the context %s may not %s", c.Context, lacking)
	}
	return g, Right, ""
}

// policies judges the results for a cluster's guarded pods:
//
//	labelled pod's address in no set    network set wrong, network policy unknown
//	network sets can't be read          both unknown
//	response without the label          network policy wrong; unknown for the labelled pod
//	no response with the label          network policy wrong
func policies(c *cluster, clusters []cluster, tried *probe.Results, skip []string) []Row {
	row := Row{To: c.name, What: policy, State: Skipped, Expected: "only pods in the set are admitted"}
	switch {
	case slices.Contains(skip, policy):
		row.Found = "--skip"
		return []Row{row}
	case c.guard == nil:
		row.State, row.Found = c.state, c.unguarded
		return []Row{row}
	}
	var rows []Row
	for i := range clusters {
		from := clusters[i].name
		if from == c.name {
			continue
		}
		row := row
		row.From = from
		at := slices.IndexFunc(tried.Guarded, func(g probe.Guarded) bool { return g.From.Cluster == from && g.To == c.name })
		switch {
		case !slices.Contains(c.guard.Remotes, from):
			row.Found = fmt.Sprintf("%s isn't among the remotes of %s", from, c.name)
		case at < 0:
			row.State, row.Found = Unknown, "no pod ran"
		case tried.Guarded[at].Skipped != "":
			row.State, row.Found = Unknown, tried.Guarded[at].Skipped
		default:
			rows = append(rows, guarded(&tried.Guarded[at])...)
			continue
		}
		rows = append(rows, row)
	}
	return rows
}

func guarded(g *probe.Guarded) []Row {
	listed := Row{From: g.From.String(), To: g.To, What: set, State: Right, Expected: "it contains the address of the pod with the label", Found: "it does"}
	switch {
	case g.Unlisted != "":
		listed.State, listed.Found = Unknown, g.Unlisted
	case g.Set != "":
		listed.State = Wrong
		listed.Found = g.Set + ": semaphore-policy of " + g.To + " doesn't run, can't reach " + g.From.Cluster + ", or lacks rights; find out with semaphorectl doctor"
	}
	rows := []Row{listed}
	for _, l := range g.Connections {
		without := Row{From: g.From.String(), To: l.To.String(), Address: l.Address, What: policy, State: Right, Expected: "without the label: denied", Found: "it is"}
		with := without
		with.Expected = "with the label: admitted"
		open := l.Unlabelled.Error == ""
		if open {
			without.State = Wrong
			without.Found = "admitted: the policy isn't enforced on " + l.To.Node + " (without Felix, or with another network plugin), or an earlier policy admits the pod"
		}
		switch {
		case l.Unknown != "":
			with.State, with.Found = Unknown, l.Unknown
		case l.Labelled.Error != "":
			with.State, with.Found = Wrong, l.Labelled.Error+", though its address is in a network set"
		case open:
			with.State, with.Found = Unknown, "all pods are"
		}
		rows = append(rows, without, with)
	}
	return rows
}
