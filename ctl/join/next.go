package join

import (
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// next prints what to do with joined clusters: commands for the first two.
func (a *installation) next() {
	words := []string{}
	for _, c := range a.clusters {
		words = append(words, c.Name)
	}
	a.Done("%s are joined. Next:", cli.And(words...))
	here, there := a.clusters[0], a.clusters[1]
	if slices.Contains(a.wanted[0].Tools, manifests.Mirror) {
		name := "web.default.svc.cluster." + there.Name
		if dns := a.facts[0].DNS; dns == nil || dns.Owner.AtOnce {
			prefix, err := a.settings[0].ServicePrefix(cluster.Name(there.Name))
			if err != nil {
				prefix = there.Name
			}
			name = prefix + "-default-73736d-web." + cli.Namespace
		}
		a.Say("  mirror a Service of %s, here web in the namespace default:", there.Name)
		a.Say("    %s", there.Kubectl("-n default label service web mirror.semaphore.uw.io/mirror-service=true"))
		a.Say("  look up its name in %s:", here.Name)
		a.Say("    %s", here.Kubectl("run ask --rm -it --restart=Never --image=busybox -- nslookup %s", name))
	}
	a.Say("  see the state, and the causes of faults:")
	a.Say("    %s", a.Line(append([]string{"status"}, words...)...))
	a.Say("    %s", a.Line(append([]string{"doctor"}, words...)...))
}

// progress returns what an interrupted or failed run of join has done, and how to continue
// or undo it.
func (a *installation) progress(done []string) string {
	text := "done: " + strings.Join(done, ", ") + "; "
	if len(done) == 0 {
		text = ""
	}
	text += "continue with: " + a.Again()
	if undo := a.undo(); undo != "" {
		text += " or undo it with: " + undo
	}
	return text
}

// undo returns the command that separates what this run joins; empty: some of the clusters
// were joined with each other before, which it would separate, too.
func (a *installation) undo() string {
	words := []string{"leave"}
	for i, f := range a.facts {
		words = append(words, f.Name)
		for j, other := range a.facts {
			if i != j && slices.Contains(f.Installed.Settings.Remotes(), cluster.Name(other.Name)) {
				return ""
			}
		}
	}
	return a.Line(words...)
}
