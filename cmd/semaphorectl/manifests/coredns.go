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

// The lines around what is ours in a Corefile. All between them is replaced and
// removed, and nothing else.
const (
	begin = "# BEGIN semaphorectl: names of services of other clusters. What is in here is overwritten."
	// beginJoined comes behind a last line that had no end.
	beginJoined = "# BEGIN semaphorectl, on a line of its own: names of services of other clusters. What is in here is overwritten."
	end         = "# END semaphorectl"
)

// zone finds the domain of the cluster's own names.
var zone = regexp.MustCompile(`(?m)^\s*kubernetes[ \t]+([a-z0-9.-]+)`)

// Domain is the cluster's domain, as its Corefile has it outside of our block.
func Domain(corefile string) string {
	if m := zone.FindStringSubmatch(WithoutBlock(corefile)); m != nil {
		if domain := strings.TrimSuffix(m[1], "."); len(validation.IsDNS1123Subdomain(domain)) == 0 {
			return domain
		}
	}
	return "cluster.local"
}

// A Zone is that of a remote: its services have names in it.
type Zone struct {
	Remote cluster.Name
	// Prefix begins the names of the services that are mirrored from it.
	Prefix string
}

// Blocks are the server blocks for names of remotes and of global services, but for those
// zones that a Corefile has outside of our block: CoreDNS doesn't start with two of one.
// It is an error if a zone would take the cluster's own names: it is the cluster's domain,
// or one above it.
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
		if err := takes(z.Remote.Zone(), domain); err != nil {
			return "", err
		}
		if others[z.Remote.Zone()] {
			continue
		}
		blocks = append(blocks, strings.NewReplacer(
			"cluster.aws", z.Remote.Zone(), `cluster\.aws`, `cluster\.`+string(z.Remote),
			"aws-", z.Prefix+"-").Replace(block))
	}
	if err := takes("cluster.global", domain); err != nil {
		return "", err
	}
	if !others["cluster.global"] {
		blocks = append(blocks, rest)
	}
	local := strings.NewReplacer("cluster.local", domain, `cluster\.local`, regexp.QuoteMeta(domain), "sys-semaphore", cli.Namespace)
	return local.Replace(strings.Join(blocks, "\n\n")), nil
}

// takes says whether a server block for a zone would answer for a cluster's own domain.
func takes(zone, domain string) error {
	if domain == zone || strings.HasSuffix(domain, "."+zone) {
		return fmt.Errorf("the zone %s would take the names of the cluster's own domain, which is %s", zone, domain)
	}
	return nil
}

// Zones are those that a Corefile has server blocks for, at any port: a block that is
// inside of no other one is a server's, behind the names of what it serves.
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

// WithBlock puts blocks into a Corefile, in the place of those that are there.
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

// WithoutBlock takes our block out and leaves the rest as it was before it came, byte
// for byte.
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

// Whole says what is wrong with our block in a Corefile: what isn't ours might be taken
// for it.
func Whole(corefile string) error {
	before, after, found := cut(corefile)
	block := corefile[len(before):]
	if found {
		block = strings.TrimSuffix(block, after)
	}
	if block != "" && (!found || strings.Count(block, "# BEGIN semaphorectl") > 1) {
		return errors.New("the lines \"# BEGIN semaphorectl\" and \"" + end + "\" in its Corefile aren't a pair any more: delete what is between them, and these lines")
	}
	return nil
}

// cut finds what is before and behind our block.
func cut(corefile string) (before, after string, found bool) {
	for _, mark := range []string{begin, beginJoined} {
		if at := strings.Index(corefile, mark+"\n"); at == 0 || at > 0 && corefile[at-1] == '\n' {
			// Editors take a last line's end away.
			_, after, found = strings.Cut(strings.TrimSuffix(corefile[at:], "\n")+"\n", "\n"+end+"\n")
			return corefile[:at], after, found
		}
	}
	return corefile, "", false
}
