package routes

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestScripts runs the cases of testdata/routes, whose README.md describes their format.
func TestScripts(t *testing.T) {
	texttest.Run(t, "testdata/routes/*.txt", func(t *testing.T) func([]string) string {
		return (&configured{t: t}).step
	})
}

// configured is a host whose routes to the pods of one remote follow its configuration.
type configured struct {
	t         *testing.T
	subnets   []netip.Prefix
	occupied  []Occupied
	device    int
	unseen    bool
	sources   []netip.Addr
	installed []Route
}

func (h *configured) step(lines []string) string {
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		all := strings.Fields(rest)
		switch word {
		case "subnets":
			h.subnets = prefixes(all...)
		case "occupied":
			h.occupied = append(h.occupied, Occupied{netip.MustParsePrefix(all[0]), strings.Join(all[1:], " ")})
		case "device":
			h.device, _ = strconv.Atoi(all[0])
			h.unseen = len(all) > 1
		case "sources":
			h.sources = nil
			for _, text := range all {
				h.sources = append(h.sources, netip.MustParseAddr(text))
			}
		default:
			h.t.Fatalf("%q: not known", line)
		}
	}
	if err := Collision(h.subnets, h.occupied); err != nil {
		return "refused: " + err.Error()
	}
	want := Retain(Desired(h.subnets, h.device, h.sources), h.installed, !h.unseen)
	add, remove := Diff(h.installed, want)
	h.installed = want
	var changes []string
	for _, r := range add {
		changes = append(changes, "add "+r.String())
	}
	for _, r := range remove {
		changes = append(changes, "remove "+r.String())
	}
	if len(changes) == 0 {
		return "no changes"
	}
	return strings.Join(changes, "\n")
}
