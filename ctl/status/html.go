package status

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/png"
	"io"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// largest is the number of nodes up to which a matrix is a table with a cell for each path.
// Larger ones are images with a dot for each path, which browsers render fast with 250,000
// of them.
const largest = 40

//go:embed page.html
var page string

// class is a class of cells.
type class struct {
	Name, Means string
	color.RGBA
	below float64 // latency in seconds
}

// Classes of cells, as in the page's styles: what isn't known, a path that is down, one that
// carries small packets only, and paths that are up, by their latency.
var classes = []class{
	{"unknown", "unknown", color.RGBA{0xd0, 0xd0, 0xd0, 0xff}, 0},
	{"down", "down", color.RGBA{0xd0, 0x2b, 0x2b, 0xff}, 0},
	{"small", "up, small packets only", color.RGBA{0xe8, 0x9a, 0x1c, 0xff}, 0},
	{"up", "up, below 5 ms", color.RGBA{0x2e, 0x9e, 0x4f, 0xff}, 0.005},
	{"up20", "below 20 ms", color.RGBA{0x3d, 0xa7, 0x8c, 0xff}, 0.020},
	{"up100", "below 100 ms", color.RGBA{0x6d, 0xa9, 0xcb, 0xff}, 0.100},
	{"upon", "100 ms and more", color.RGBA{0xa5, 0x93, 0xd0, 0xff}, 1e9},
}

// class returns the index of a path's class.
func (p *Path) class() int {
	switch {
	case p.State == Down:
		return 1
	case p.State != Up:
		return 0
	case p.SmallOnly:
		return 2
	}
	for i := 3; i < len(classes); i++ {
		if p.RTT < classes[i].below {
			return i
		}
	}
	return len(classes) - 1
}

// meanings explains signs of paths.
var meanings = map[string]string{
	"no_answer":    "the node has answered probes before, and answers none now: nothing is received from it",
	"one_way":      "packets of the node arrive here, and ours don't arrive there: a firewall, a security group or a route on the way to it",
	"no_handshake": "WireGuard never had a session with the node: its port may be closed to this node, or its key is another one",
	"silence":      "there is a session, but nothing is received",
	"small_only":   "full-size packets are lost: the network carries smaller packets than the tunnel's MTU",
	"no_peer":      "the node isn't a peer of this one",
	"rejected":     "this node's agent doesn't accept the node as a peer",
}

// Summary returns a view in one line.
func (v *View) Summary() string {
	more := func(lines []string) string {
		if len(lines) == 1 {
			return lines[0]
		}
		return fmt.Sprintf("%s; and %d more", lines[0], len(lines)-1)
	}
	switch {
	case len(v.Wrong) > 0:
		return cli.Count(len(v.Wrong), "fault") + ": " + more(v.Wrong)
	case len(v.Unknown) > 0:
		return "No fault is known, but " + cli.Are(len(v.Unknown), "thing") + " unknown: " + more(v.Unknown)
	}
	up, slowest := 0, 0.0
	for i := range v.Meshes {
		up += v.Meshes[i].Counts.Up
		for _, row := range v.Meshes[i].Paths {
			for j := range row {
				slowest = max(slowest, row[j].RTT)
			}
		}
	}
	line := "No faults found: " + cli.Are(up, "path") + " up"
	if slowest > 0 {
		line += ", the slowest with " + latency(slowest)
	}
	return line
}

// section returns the anchor of the matrix that a finding is about; empty: none.
func (v *View) section(of judge.Scope) string {
	for i := range v.Meshes {
		if of.Cluster == v.Meshes[i].From && of.Remote == v.Meshes[i].To {
			return fmt.Sprint("m", i)
		}
	}
	return ""
}

// HTML prints a view as one self-contained page without scripts. html/template escapes text
// from clusters, and the page's content security policy forbids scripts and other files.
func (v *View) HTML(to io.Writer) error {
	parsed, err := template.New("page").Funcs(template.FuncMap{
		"text":  func(s string) string { return printable.Text(s, printable.Short) },
		"age":   age,
		"join":  func(list []string) string { return strings.Join(list, ", ") },
		"image": (*Mesh).image,
		"side":  func(n int) int { return max(n, min(1000, 4*n)) },
		"asTable": func(m *Mesh) bool {
			return max(len(m.Rows), len(m.Columns)) <= largest || len(m.Rows)*len(m.Columns) == 0 // No image is empty.
		},
		"bad":     (*Mesh).bad,
		"class":   func(p *Path) string { return classes[p.class()].Name },
		"section": v.section,
		"meaning": func(sign string) string { return meanings[sign] },
		"classes": func() []class { return classes },
		"colour":  func(c class) template.CSS { return template.CSS(fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B)) },
		"doctor": func() string {
			words := []string{"semaphorectl doctor"}
			for i := range v.Clusters {
				words = append(words, cli.Quote(v.Clusters[i].Name))
			}
			return strings.Join(words, " ")
		},
		"total":   func(m *Mesh) []total { return m.totals() },
		"latency": latency,

		"importColumns": importColumns,
	}).Parse(page)
	if err != nil {
		return err
	}
	meshes := make([]*Mesh, len(v.Meshes))
	for i := range v.Meshes {
		meshes[i] = &v.Meshes[i]
	}
	var b bytes.Buffer
	if err := parsed.Execute(&b, struct {
		*View
		Each []*Mesh
	}{v, meshes}); err != nil {
		return err
	}
	_, err = b.WriteTo(to)
	return err
}

// image returns the matrix as a data URL.
func (m *Mesh) image() (template.URL, error) {
	var palette color.Palette
	for _, c := range classes {
		palette = append(palette, c.RGBA)
	}
	dots := image.NewPaletted(image.Rect(0, 0, len(m.Columns), len(m.Rows)), palette)
	for y := range m.Rows {
		for x := range m.Columns {
			dots.SetColorIndex(x, y, uint8(m.Paths[y][x].class()))
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, dots); err != nil {
		return "", err
	}
	// Safe: it contains no text from clusters.
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())), nil
}

// namedPath is a path with its indexes, and the names of its nodes.
type namedPath struct {
	Row, Column int
	From, To    string
	Path
}

// bad returns the first maxLines paths with faults.
func (m *Mesh) bad() []namedPath {
	var found []namedPath
	for i, row := range m.Rows {
		for j, column := range m.Columns {
			if len(found) < maxLines && m.Paths[i][j].class() < 3 {
				found = append(found, namedPath{i, j, row, column, m.Paths[i][j]})
			}
		}
	}
	return found
}

// total summarizes the paths from one node.
type total struct {
	Node string
	Counts
	// Median and Slowest are those of the measured latencies, in seconds; 0: none.
	Median, Slowest float64
}

func (m *Mesh) totals() []total {
	all := make([]total, len(m.Rows))
	for i, row := range m.Rows {
		all[i].Node = row
		var took []float64
		for j := range m.Columns {
			if rtt := m.Paths[i][j].RTT; rtt > 0 {
				took = append(took, rtt)
			}
			switch m.Paths[i][j].State {
			case Up:
				all[i].Up++
			case Down:
				all[i].Down++
			default:
				all[i].Unknown++
			}
		}
		if len(took) > 0 {
			slices.Sort(took)
			all[i].Median, all[i].Slowest = took[len(took)/2], took[len(took)-1]
		}
	}
	return all
}
