package virtual

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// node returns what a node with a map publishes; "-": no agent publishes for it.
func node(text string) *Node {
	annotations := map[string]string{podCIDRs: "10.0.0.0/24"}
	switch text {
	case "-":
		clear(annotations)
	case "":
	default:
		annotations[config.SubnetMapAnnotation] = text
	}
	n := NodeOf(annotations)
	return &n
}

func TestNodeOf(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        Node
	}{
		"no agent":           {nil, Node{}},
		"an agent, no map":   {map[string]string{podCIDRs: ""}, Node{Agent: true}},
		"an empty map":       {map[string]string{config.SubnetMapAnnotation: ""}, Node{Agent: true}},
		"a map":              {map[string]string{config.SubnetMapAnnotation: "10.0.0.0/16=10.201.0.0/16"}, Node{Agent: true, Map: "10.0.0.0/16=10.201.0.0/16"}},
		"not canonical":      {map[string]string{config.SubnetMapAnnotation: " FD00:4::1/48=fd00:c9::/48, 10.0.1.2/16=10.201.0.0/16"}, Node{Agent: true, Map: "10.0.0.0/16=10.201.0.0/16,fd00:4::/48=fd00:c9::/48"}},
		"of different sizes": {map[string]string{config.SubnetMapAnnotation: "10.0.0.0/16=10.201.0.0/24"}, Node{Agent: true, Fault: "10.0.0.0/16=10.201.0.0/24 maps between subnets of different lengths: each address needs one of its own"}},
		"control characters": {map[string]string{config.SubnetMapAnnotation: "\x1b[2J"}, Node{Agent: true, Fault: `"\x1b[2J" is not a pair of subnets such as 10.0.0.0/16=10.201.0.0/16`}},
		"too long":           {map[string]string{config.SubnetMapAnnotation: strings.Repeat("1", maxText+1)}, Node{Agent: true, Fault: "a map of 2049 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, NodeOf(c.annotations)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if n := NodeOf(map[string]string{config.SubnetMapAnnotation: strings.Repeat("x,", maxText/2)}); len(n.Fault) > 2*maxFault {
		t.Errorf("a fault of %d bytes", len(n.Fault))
	}
}

// TestLongestMap checks that a map of the largest size that agents accept is read.
func TestLongestMap(t *testing.T) {
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf("fd00:1111:2222:3333:4444:5555:%x:0/112=fd00:aaaa:bbbb:cccc:dddd:eeee:%x:0/112", 0x1000+i, 0x2000+i))
	}
	if n := node(strings.Join(all, ",")); n.Fault != "" || strings.Count(n.Map, "=") != 16 {
		t.Errorf("%+v", n)
	}
}

func TestOf(t *testing.T) {
	const a, b = "10.0.0.0/16=10.4.0.0/16,fd00:4::/48=fd00:c9::/48", "10.0.0.0/16=10.5.0.0/16"
	type question struct{ node, addr string }
	for name, c := range map[string]struct {
		nodes map[string]string // their maps
		want  map[question]string
	}{
		"no nodes": {nil, map[question]string{{"n", "10.0.0.1"}: "10.0.0.1", {"", "10.0.0.1"}: "10.0.0.1"}},
		"no maps":  {map[string]string{"n": ""}, map[question]string{{"n", "10.0.0.1"}: "10.0.0.1", {"", "10.0.0.1"}: "10.0.0.1"}},
		"one map": {map[string]string{"n": a, "m": a}, map[question]string{
			{"n", "10.0.0.1"}: "10.4.0.1", {"m", "fd00:4::5"}: "fd00:c9::5", {"", "10.0.0.1"}: "10.4.0.1", {"x", "10.0.0.1"}: "10.4.0.1",
			{"n", "10.1.0.1"}: "10.1.0.1", {"n", "10.4.0.1"}: "10.4.0.1", {"n", "::ffff:10.0.0.1"}: "::ffff:10.0.0.1", {"n", "fd00:4::5%eth0"}: "fd00:4::5%eth0",
		}},
		"different maps": {map[string]string{"n": a, "m": b}, map[question]string{
			{"n", "10.0.0.1"}: "10.4.0.1", {"m", "10.0.0.1"}: "10.5.0.1", {"", "10.0.0.1"}: "unknown", {"x", "10.0.0.1"}: "unknown", {"x", "fd00:4::5"}: "unknown",
			{"", "10.1.0.1"}: "10.1.0.1", {"", "fd00:5::1"}: "fd00:5::1",
		}},
		"one node has none yet":    {map[string]string{"n": a, "m": ""}, map[question]string{{"m", "10.0.0.1"}: "10.0.0.1", {"", "10.0.0.1"}: "unknown"}},
		"a node without an agent":  {map[string]string{"n": a, "m": "-"}, map[question]string{{"m", "10.0.0.1"}: "10.0.0.1", {"", "10.0.0.1"}: "10.4.0.1"}},
		"an invalid map is no map": {map[string]string{"n": a, "m": "10.0.0.0/8=10.4.0.0/16"}, map[question]string{{"m", "10.0.0.1"}: "10.0.0.1", {"", "10.0.0.1"}: "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			for name, text := range c.nodes {
				table.Update(name, node(text))
			}
			table.Agree()
			for q, want := range c.want {
				got, known := table.Of(q.node, netip.MustParseAddr(q.addr))
				text := got.String()
				if !known {
					text = "unknown"
				}
				if text != want {
					t.Errorf("%s on %q is %s, want %s", q.addr, q.node, text, want)
				}
			}
		})
	}
	if got, known := (*Table)(nil).Of("n", netip.MustParseAddr("10.0.0.1")); !known || got != netip.MustParseAddr("10.0.0.1") || (*Table)(nil).Knows("n") {
		t.Errorf("without a table it is %v", got)
	}
}

// TestUpdateSaysWhatMayBeOthers changes maps of nodes one after the other.
func TestUpdateSaysWhatMayBeOthers(t *testing.T) {
	const a, b = "10.0.0.0/16=10.4.0.0/16", "10.0.0.0/16=10.5.0.0/16"
	var table Table
	for _, c := range []struct {
		name         string
		node         *Node
		here, others bool
	}{
		{"n", node(a), true, true},
		{"n", node(a), false, false},
		{"n", node(" " + a), false, false},
		{"m", node(a), true, false},
		{"m", node(b), true, true},
		{"n", node(b), true, true},
		{"o", node("-"), true, false},
		{"o", node(""), true, true},
		{"o", node("bad"), false, false},
		{"p", node(""), true, false},
		{"o", nil, true, false},
		{"p", nil, true, true},
		{"p", nil, false, false},
		{"n", nil, true, false},
		{"m", nil, true, true},
	} {
		if here, others := table.Update(c.name, c.node), table.Agree(); here != c.here || others != c.others {
			t.Errorf("%s with %+v: %v, %v, want %v, %v", c.name, c.node, here, others, c.here, c.others)
		}
	}
	if len(table.nodes)+len(table.maps)+len(table.faults)+len(table.agreed)+table.mapped > 0 {
		t.Errorf("without nodes there is %+v", table)
	}
}

func TestStatus(t *testing.T) {
	const a, b = "10.0.0.0/16=10.4.0.0/16", "10.0.0.0/16=10.5.0.0/16"
	for name, c := range map[string]struct {
		nodes map[string]string
		want  status.PodSubnetsMap
	}{
		"none":      {map[string]string{"n": "", "m": "-"}, status.PodSubnetsMap{State: status.MapNone}},
		"known":     {map[string]string{"n": a, "m": "-", "o": a}, status.PodSubnetsMap{State: status.MapKnown, Maps: []status.NodesWithMap{{Map: a, Nodes: 2}}}},
		"different": {map[string]string{"n": a, "m": "", "o": b}, status.PodSubnetsMap{State: status.MapDiffers, Maps: []status.NodesWithMap{{Nodes: 1}, {Map: a, Nodes: 1}, {Map: b, Nodes: 1}}}},
		"invalid": {map[string]string{"n": a, "z": "bad", "m": "worse"}, status.PodSubnetsMap{
			State: status.MapBad, Fault: `node m: "worse" is not a pair of subnets such as 10.0.0.0/16=10.201.0.0/16`,
			Maps: []status.NodesWithMap{{Nodes: 2}, {Map: a, Nodes: 1}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			for name, text := range c.nodes {
				table.Update(name, node(text))
			}
			if diff := cmp.Diff(c.want, table.Status()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// largest returns a map with as many mappings as there may be, another one for each number.
func largest(n int) string {
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf("10.%d.%d.%d/32=100.%d.%d.%d/32", i, n>>8&255, n&255, 64+i, n>>8&255, n&255))
	}
	return strings.Join(all, ",")
}

// TestTenThousandMaps has a remote with a different map on each node.
func TestTenThousandMaps(t *testing.T) {
	const nodes, most = 10_000, 40 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var table Table
	for i := range nodes {
		table.Update(fmt.Sprint("n-", i), node(largest(i)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got := int64(after.HeapAlloc) - int64(before.HeapAlloc); got > most {
		t.Errorf("%d bytes, want %d at most", got, most)
	}
	table.Agree()
	if _, known := table.Of("", netip.MustParseAddr("192.168.0.1")); known {
		t.Error("an address on no known node is known, although it would have to be compared with all maps")
	}
	if a, known := table.Of("n-258", netip.MustParseAddr("10.0.1.2")); !known || a != netip.MustParseAddr("100.64.1.2") {
		t.Errorf("an address on a node is %v", a)
	}
	if s := table.Status(); s.State != status.MapDiffers || len(s.Maps) != maxMaps {
		t.Errorf("state %s, %d maps", s.State, len(s.Maps))
	}
	for i := range nodes {
		table.Update(fmt.Sprint("n-", i), node("10.0.0.0/16=10.4.0.0/16"))
	}
	if !table.Agree() {
		t.Error("one map instead of many is no change")
	}
	if a, known := table.Of("", netip.MustParseAddr("10.0.0.1")); !known || a != netip.MustParseAddr("10.4.0.1") {
		t.Errorf("an address on no known node is %v, when all have one map", a)
	}
}

// BenchmarkOf measures what translating one address takes, with one node or 10,000.
func BenchmarkOf(b *testing.B) {
	a := netip.MustParseAddr("10.0.1.2")
	for _, nodes := range []int{0, 1, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			var table Table
			for i := range nodes {
				table.Update(fmt.Sprint("n-", i), node(largest(i%2)))
			}
			for b.Loop() {
				table.Of("n-0", a)
			}
		})
	}
}

// FuzzNode reads any text as a map: it is in canonical form or has a fault, and what is translated
// is in a virtual subnet.
func FuzzNode(f *testing.F) {
	for _, text := range []string{"", "10.0.0.0/16=10.4.0.0/16", "10.0.0.0/16=10.4.0.0/16,fd00:4::/48=fd00:c9::/48", "0.0.0.0/0=::/0", "::ffff:10.0.0.0/112=fd00::/112", "=,=,", "10.0.0.0/33=1"} {
		f.Add(text, "10.0.0.1")
	}
	f.Fuzz(func(t *testing.T, text, address string) {
		n := node(text)
		if n.Fault != "" {
			if n.Map != "" || strings.ContainsFunc(n.Fault, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("%+v", n)
			}
			return
		}
		if again := node(n.Map); *again != *n && n.Map != "" {
			t.Fatalf("%+v, then %+v", n, again)
		}
		a, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		var table Table
		table.Update("n", n)
		v, known := table.Of("n", a)
		if !known {
			t.Fatalf("%v isn't known", a)
		}
		var m config.SubnetMap
		if n.Map != "" {
			if err := m.Decode(n.Map); err != nil {
				t.Fatal(err)
			}
		}
		if v == a {
			return
		}
		for _, mapping := range m {
			if mapping.Virtual.Contains(v) && mapping.Real.Contains(a) {
				return
			}
		}
		t.Fatalf("%v is %v by %s", a, v, n.Map)
	})
}
