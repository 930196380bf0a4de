package manifests

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
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

// zone matches the cluster's domain.
var zone = regexp.MustCompile(`(?m)^\s*kubernetes[ \t]+([a-z0-9.-]+)`)

// Domain returns the cluster's domain from its Corefile outside of our block.
func Domain(corefile string) string {
	if m := zone.FindStringSubmatch(WithoutBlock(corefile)); m != nil {
		if domain := strings.TrimSuffix(m[1], "."); len(validation.IsDNS1123Subdomain(domain)) == 0 {
			return domain
		}
	}
	return "cluster.local"
}

// A Zone is the DNS zone of a remote's services.
type Zone struct {
	Remote cluster.Name
	// Prefix is the name prefix of services mirrored from the remote.
	Prefix string
}

// Blocks returns the server blocks for the zones of remotes and of global services, except
// zones that the Corefile serves outside of our block: CoreDNS refuses two server blocks for
// one zone. It is an error if a zone contains the cluster's own domain.
func Blocks(zones []Zone, corefile string) (string, error) {
	domain := Domain(corefile)
	others := Zones(WithoutBlock(corefile))
	content, err := deploy.Files.ReadFile("coredns/Corefile")
	if err != nil {
		return "", err
	}
	text := string(content)
	first, global := strings.Index(text, "\ncluster.aws:53 {\n"), strings.Index(text, "\ncluster.global:53 {\n")
	if first < 0 || global < first {
		return "", errors.New("deploy/coredns/Corefile has no blocks for aws and global")
	}
	block, rest := strings.TrimSpace(text[first:global]), strings.TrimSpace(text[global:])
	var blocks []string
	for _, z := range zones {
		if _, err := cluster.ParseName(string(z.Remote)); err != nil {
			return "", err
		}
		if _, err := cluster.ParsePrefix(z.Prefix); err != nil {
			return "", err
		}
		if err := shadows(z.Remote.Zone(), domain); err != nil {
			return "", err
		}
		if others[z.Remote.Zone()] {
			continue
		}
		blocks = append(blocks, strings.NewReplacer(
			"cluster.aws", z.Remote.Zone(), `cluster\.aws`, `cluster\.`+string(z.Remote),
			"aws-", z.Prefix+"-").Replace(block))
	}
	if err := shadows("cluster.global", domain); err != nil {
		return "", err
	}
	if !others["cluster.global"] {
		blocks = append(blocks, rest)
	}
	local := strings.NewReplacer("cluster.local", domain, `cluster\.local`, regexp.QuoteMeta(domain), "sys-semaphore", cli.Namespace)
	return local.Replace(strings.Join(blocks, "\n\n")), nil
}

// shadows returns an error if a server block for a zone would answer for the cluster's own
// domain.
func shadows(zone, domain string) error {
	if domain == zone || strings.HasSuffix(domain, "."+zone) {
		return fmt.Errorf("the zone %s would shadow the cluster's own domain %s", zone, domain)
	}
	return nil
}

// Zones returns the zones of a Corefile's server blocks, at any port: those before each
// block that isn't inside another one.
func Zones(corefile string) map[string]bool {
	found, depth := map[string]bool{}, 0
	var keys []string
	for line := range strings.Lines(corefile) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(strings.ReplaceAll(line, ",", " ")) {
			switch {
			case word == "{":
				for _, key := range keys {
					key, _, _ = strings.Cut(strings.TrimPrefix(key, "dns://"), ":")
					found[strings.ToLower(strings.TrimSuffix(key, "."))] = true
				}
				keys = nil
				depth++
			case word == "}":
				depth--
			case depth == 0:
				keys = append(keys, word)
			}
		}
	}
	return found
}

// WithBlock inserts server blocks into a Corefile, or replaces those in our block.
func WithBlock(corefile, blocks string) string {
	if blocks == "" {
		return WithoutBlock(corefile)
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

// WithoutBlock removes our block, and restores the Corefile byte for byte.
func WithoutBlock(corefile string) string {
	before, after, found := cut(corefile)
	if !found {
		return corefile
	}
	if strings.HasPrefix(corefile[len(before):], beginJoined) {
		before = strings.TrimSuffix(before, "\n")
	}
	return before + after
}

// Whole returns an error if the lines around our block aren't a pair, so that foreign lines
// could be removed with it.
func Whole(corefile string) error {
	before, after, found := cut(corefile)
	block := corefile[len(before):]
	if found {
		block = strings.TrimSuffix(block, after)
	}
	if block != "" && (!found || strings.Count(block, "# BEGIN semaphorectl") > 1) {
		return errors.New("the lines \"# BEGIN semaphorectl\" and \"" + end + "\" in its Corefile aren't a pair: delete them and the lines between them")
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
