package virtual

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
)

func TestShow(t *testing.T) {
	const a, b = "10.0.0.0/16=10.4.0.0/16", "10.0.0.0/16=10.5.0.0/16"
	command := report.Command[status.PodSubnetsMap]{Program: "program", Address: ":8081", Show: func(p *report.Page, m *status.PodSubnetsMap) {
		Show(p, "remote gcp", m)
	}}
	for name, c := range map[string]struct {
		m     status.PodSubnetsMap
		wrong []string
		shown string
	}{
		"none":         {status.PodSubnetsMap{State: status.MapNone}, nil, ""},
		"known":        {status.PodSubnetsMap{State: status.MapKnown, Maps: []status.NodesWithMap{{Map: a, Nodes: 3}}}, nil, "remote gcp: its pods are known by other addresses: " + a},
		"forbidden":    {status.PodSubnetsMap{State: status.MapForbidden}, nil, "remote gcp: a map of its pod subnets would not be known, as its nodes are forbidden to this account: see deploy/remote"},
		"unread":       {status.PodSubnetsMap{State: status.MapUnread}, []string{"remote gcp: nodes: not synced since start"}, ""},
		"an error":     {status.PodSubnetsMap{State: status.MapUnread, Error: "timed out"}, []string{"remote gcp: nodes: timed out"}, ""},
		"lost rights":  {status.PodSubnetsMap{State: status.MapNone, Error: "Forbidden"}, []string{"remote gcp: nodes: Forbidden"}, ""},
		"they differ":  {status.PodSubnetsMap{State: status.MapDiffers, Maps: []status.NodesWithMap{{Nodes: 1}, {Map: a, Nodes: 1}, {Map: b, Nodes: 2}}}, []string{"remote gcp: its nodes have different maps of its pod subnets: none; " + a + "; " + b}, ""},
		"one is wrong": {status.PodSubnetsMap{State: status.MapBad, Fault: "node n: a map of 4000 bytes"}, []string{"remote gcp: the map of pod subnets of a node is not valid: node n: a map of 4000 bytes"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.wrong) > 0 {
				reporttest.Finds(t, command, c.m, c.wrong, c.shown)
				return
			}
			if got := reporttest.Run(t, command, c.m); got.Code != 0 || !strings.Contains(got.Stdout, c.shown) {
				t.Errorf("%+v, want %q", got, c.shown)
			}
		})
	}
}
