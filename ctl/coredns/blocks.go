package coredns

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/deploy"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// The lines around our block in a Corefile. They must not change: they mark the blocks of
// earlier versions, too.
const (
	begin = "# BEGIN semaphorectl: names of services of other clusters. What is in here is overwritten."
	// beginJoined is for a Corefile whose last line had no line break.
	beginJoined = "# BEGIN semaphorectl, on a line of its own: names of services of other clusters. What is in here is overwritten."
	end         = "# END semaphorectl"
)

// A Zone is the DNS zone of a remote's services. The zero value is that of imports of the
// Multi-Cluster Services API.
type Zone struct {
	Remote cluster.Name
	// Prefix is the name prefix of services mirrored from the remote.
	Prefix string
}

// ClusterSet is the zone of imports of the Multi-Cluster Services API.
const ClusterSet = "clusterset.local"

func (z Zone) name() string {
	if z == (Zone{}) {
		return ClusterSet
	}
	return z.Remote.Zone()
}

// global is the zone of global services.
const global = "cluster.global"

// blocks returns the server blocks for the zones of remotes and of global services, except
// zones that others serve: CoreDNS refuses two server blocks for one zone. It is an error if
// a zone contains the cluster's own domain. like is the server block of that domain; ours
// have its port, its addresses and its access to the API server.
func blocks(zones []Zone, like *Server, domain string, others func(zone string) bool) (string, error) {
	content, err := deploy.Files.ReadFile("coredns/Corefile")
	if err != nil {
		return "", err
	}
	text := string(content)
	first, second := strings.Index(text, "\ncluster.aws:53 {\n"), strings.Index(text, "\ncluster.global:53 {\n")
	if first < 0 || second < first {
		return "", errors.New("deploy/coredns/Corefile has no blocks for aws and global")
	}
	block, rest := strings.TrimSpace(text[first:second]), strings.TrimSpace(text[second:])
	var all []string
	port, bind, access := adapt(like)
	// add adds a block, with further words to replace. What replaces a word isn't looked at again: a
	// remote may have a name such as local-1.
	add := func(block string, words ...string) {
		words = append(words, "cluster.local", domain, `cluster\.local`, regexp.QuoteMeta(domain),
			":53 {\n", port+" {\n"+bind, "        namespaces", access+"        namespaces", "        multicluster", access+"        multicluster")
		all = append(all, strings.NewReplacer(words...).Replace(block))
	}
	for _, z := range zones {
		if z == (Zone{}) {
			continue
		}
		if _, err := cluster.ParseName(string(z.Remote)); err != nil {
			return "", err
		}
		if _, err := cluster.ParsePrefix(z.Prefix); err != nil {
			return "", err
		}
		if err := shadows(z.Remote.Zone(), domain); err != nil {
			return "", err
		}
		if others(z.Remote.Zone()) {
			continue
		}
		add(block, "cluster.aws", z.Remote.Zone(), `cluster\.aws`, `cluster\.`+string(z.Remote), "aws-", z.Prefix+"-")
	}
	if err := shadows(global, domain); err != nil {
		return "", err
	}
	if !others(global) {
		add(rest)
	}
	if slices.Contains(zones, Zone{}) && !others(ClusterSet) {
		if err := shadows(ClusterSet, domain); err != nil {
			return "", err
		}
		content, err := deploy.Files.ReadFile("coredns/Corefile.clusterset")
		if err != nil {
			return "", err
		}
		_, block, _ := strings.Cut("\n"+string(content), "\n"+ClusterSet)
		add(ClusterSet + strings.TrimSpace(block))
	}
	return strings.Join(all, "\n\n"), nil
}

// adapt returns what differs in our server blocks for a CoreDNS whose server block of the
// cluster's domain is like: port, lines that bind addresses, and access to the API server.
func adapt(like *Server) (port, bind, access string) {
	if like == nil {
		return ":53", "", ""
	}
	if at := like.plain(); at.Port != "" {
		port = ":" + at.Port
	}
	if d := like.directive("bind"); d != nil {
		bind = "    bind " + quote(d.Args)
		if len(d.Body) > 0 {
			bind += " {\n"
			for _, line := range d.Body {
				bind += "        " + quote(line) + "\n"
			}
			bind += "    }"
		}
		bind += "\n"
	}
	for _, line := range like.directive("kubernetes").Body {
		if isAccess(line) {
			access += "        " + quote(line) + "\n"
		}
	}
	return port, bind, access
}

// isAccess reports whether a line of the plugin kubernetes is about its access to the API
// server.
func isAccess(line []string) bool {
	return slices.Contains([]string{"endpoint", "tls", "kubeconfig"}, line[0])
}

// shadows returns an error if a server block for a zone would answer for the cluster's own
// domain.
func shadows(zone, domain string) error {
	if domain == zone || strings.HasSuffix(domain, "."+zone) {
		return fmt.Errorf("the zone %s would shadow the cluster's own domain %s", zone, domain)
	}
	return nil
}

// withBlock inserts server blocks into a Corefile, or replaces those in our block.
func withBlock(corefile, blocks string) string {
	if blocks == "" {
		return withoutBlock(corefile)
	}
	before, after, found := cut(corefile)
	if found {
		_, line, _ := strings.Cut(corefile[len(before):], "# BEGIN")
		line, _, _ = strings.Cut(line, "\n")
		return before + "# BEGIN" + line + "\n" + blocks + "\n" + end + "\n" + after
	}
	mark := begin
	if corefile != "" && !strings.HasSuffix(corefile, "\n") {
		mark, corefile = beginJoined, corefile+"\n"
	}
	return corefile + mark + "\n" + blocks + "\n" + end + "\n"
}

// withoutBlock removes our block, and restores the Corefile byte for byte.
func withoutBlock(corefile string) string {
	before, after, found := cut(corefile)
	if !found {
		return corefile
	}
	if strings.HasPrefix(corefile[len(before):], beginJoined) {
		before = strings.TrimSuffix(before, "\n")
	}
	return before + after
}

// whole returns an error if the lines around our block aren't a pair, so that foreign lines
// could be removed with it.
func whole(corefile string) error {
	before, after, found := cut(corefile)
	block := corefile[len(before):]
	if found {
		block = strings.TrimSuffix(block, after)
	}
	if block != "" && (!found || strings.Count(block, "# BEGIN semaphorectl") > 1) {
		return errors.New("the lines \"# BEGIN semaphorectl\" and \"" + end + "\" aren't a pair: delete them and the lines between them")
	}
	return nil
}

// cut returns what is before and after our block.
func cut(corefile string) (before, after string, found bool) {
	for _, mark := range []string{begin, beginJoined} {
		if at := strings.Index(corefile, mark+"\n"); at == 0 || at > 0 && corefile[at-1] == '\n' {
			// An editor may have removed the last line break.
			_, after, found = strings.Cut(strings.TrimSuffix(corefile[at:], "\n")+"\n", "\n"+end+"\n")
			return corefile[:at], after, found
		}
	}
	return corefile, "", false
}

// Names returns the zones of remotes, and that of global services.
func Names(zones []Zone) []string {
	var all []string
	for _, z := range zones {
		all = append(all, z.name())
	}
	return append(all, global)
}
