package status

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"html/template"
	"image"
	"image/color"
	"image/png"
	"io"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// largest is the number of nodes up to which a matrix is a table with a cell for each path.
// Larger ones are images with a dot for each path, which browsers render fast with 250,000
// of them.
const largest = 40

//go:embed page.html
var page string

// Colours of states, as in the page's styles.
var palette = color.Palette{
	color.RGBA{0xd0, 0xd0, 0xd0, 0xff}, color.RGBA{0x2e, 0x9e, 0x4f, 0xff}, color.RGBA{0xd0, 0x2b, 0x2b, 0xff},
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
		"total":   func(m *Mesh) []total { return m.totals() },
		"latency": latency,
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
	dots := image.NewPaletted(image.Rect(0, 0, len(m.Columns), len(m.Rows)), palette)
	for y := range m.Rows {
		for x := range m.Columns {
			switch m.Paths[y][x].State {
			case Up:
				dots.SetColorIndex(x, y, 1)
			case Down:
				dots.SetColorIndex(x, y, 2)
			}
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, dots); err != nil {
		return "", err
	}
	// Safe: it contains no text from clusters.
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())), nil
}

// namedPath is a path with the names of its nodes.
type namedPath struct {
	From, To string
	Path
}

// bad returns the first maxLines paths that aren't up.
func (m *Mesh) bad() []namedPath {
	var found []namedPath
	for i, row := range m.Rows {
		for j, column := range m.Columns {
			if len(found) < maxLines && m.Paths[i][j].State != Up {
				found = append(found, namedPath{row, column, m.Paths[i][j]})
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
