package scenarios_test

import (
	"bytes"
	"fmt"
	"html"
	"iter"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Sizes in pixels. Grafana's pages have 24 columns.
const (
	columnWidth = 50
	unitHeight  = 21
	panelGap    = 6
	heading     = 58
)

var lineColours = []string{"#2f6fdb", "#d9822b", "#2e9e5b", "#b7419e", "#c0392b", "#6f5fd0", "#158a98", "#8a6d1f"}

// drawing is an SVG.
type drawing struct {
	bytes.Buffer
	first, last float64 // of all points, in Unix time
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(&d.Buffer, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, text string, most int) {
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	d.add(`<text class="%s" x="%.0f" y="%.0f">%s</text>`, class, x, y, html.EscapeString(text))
}

// svg draws the panels with the results of their queries.
func (b *dashboard) svg() []byte {
	bottom := 0
	d := drawing{first: math.Inf(1)}
	for i := range b.Panels {
		p := &b.Panels[i]
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
		for s := range p.all() {
			d.first, d.last = min(d.first, s.points[0][0]), max(d.last, s.points[len(s.points)-1][0])
		}
	}
	width, height := 24*columnWidth+panelGap, heading+bottom*unitHeight+panelGap
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`, width, height, width, height, b.Title)
	d.add(`<style>text{font:11px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#59636e}.h{font-size:16px;font-weight:600;fill:#1f2328}.t{font-size:12px;font-weight:600;fill:#1f2328}.v{font-size:30px;text-anchor:middle;fill:#1f2328}.green{fill:#2e9e5b}.red{fill:#c0392b}.orange{fill:#d9822b}.y{font-size:10px;text-anchor:end}.p{fill:#fff;stroke:#d1d9e0}.g{stroke:#e6eaee;fill:none}.l{fill:none;stroke-width:1.3}</style>`)
	d.add(`<rect width="%d" height="%d" fill="#f6f8fa"/>`, width, height)
	d.text(10, 26, "h", b.Title+": the panels of deploy/observability/dashboard.json", 200)
	d.text(10, 46, "", "Drawn from the answers of a Prometheus to the panels' queries, in TestDashboard of e2e/scenarios; it isn't a picture of Grafana.", 200)
	for i := range b.Panels {
		d.panel(&b.Panels[i])
	}
	d.add("</svg>")
	return d.Bytes()
}

func (d *drawing) panel(p *panel) {
	x, y := float64(p.GridPos.X*columnWidth+panelGap), float64(heading+p.GridPos.Y*unitHeight)
	width, height := float64(p.GridPos.W*columnWidth-panelGap), float64(p.GridPos.H*unitHeight-panelGap)
	if p.Type == "row" {
		d.text(x+4, y+15, "h", p.Title, 100)
		return
	}
	d.add(`<rect class="p" x="%.1f" y="%.1f" width="%.0f" height="%.0f" rx="4"/>`, x+.5, y+.5, width, height)
	d.text(x+8, y+17, "t", p.Title, int(width/6.4))
	switch p.Type {
	case "stat":
		value := p.Targets[0].series[0].points[0][1]
		colour := ""
		for _, s := range p.FieldConfig.Defaults.Thresholds.Steps {
			if s.Value == nil || value >= *s.Value {
				colour = s.Color
			}
		}
		if len(p.FieldConfig.Defaults.Thresholds.Steps) < 2 {
			colour = ""
		}
		d.text(x+width/2, y+height-16, "v "+colour, inUnit(value, p.FieldConfig.Defaults.Unit), 20)
	case "table":
		d.table(x+8, y+36, width, p.Targets[0].series)
	default:
		d.lines(p, x, y, width, height)
	}
}

// all yields the series of all queries.
func (p *panel) all() iter.Seq[series] {
	return func(yield func(series) bool) {
		for _, t := range p.Targets {
			for _, s := range t.series {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// table draws the rows of a result, without what the dashboard leaves out.
func (d *drawing) table(x, y, width float64, rows []series) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(rows[0].labels)), func(name string) bool { return slices.Contains([]string{"job", "public_key"}, name) })
	step := width / float64(len(names)+1)
	for i, name := range append(names, "value") {
		d.text(x+float64(i)*step, y, "t", name, int(step/6))
	}
	for n, row := range rows {
		for i, name := range names {
			d.text(x+float64(i)*step, y+float64(n+1)*17, "", row.labels[name], int(step/6))
		}
		value := fmt.Sprintf("%.0f", row.points[0][1])
		if row.points[0][1] > 1e9 {
			value = "never"
		}
		d.text(x+float64(len(names))*step, y+float64(n+1)*17, "", value, 20)
	}
}

// lines draws the series of a panel over time, with a legend.
func (d *drawing) lines(p *panel, x, y, width, height float64) {
	most := 0.0
	for s := range p.all() {
		for _, point := range s.points {
			if !math.IsNaN(point[1]) {
				most = max(most, point[1])
			}
		}
	}
	if most == 0 {
		most = 1
	}
	left, right, top, bottom := x+52, x+width-10, y+28, y+height-36
	for i := range 3 {
		at := bottom - float64(i)*(bottom-top)/2
		d.add(`<path class="g" d="M%.0f %.1fH%.0f"/>`, left, at, right)
		d.text(left-4, at+4, "y", inUnit(most*float64(i)/2, p.FieldConfig.Defaults.Unit), 12)
	}
	n, place := 0, left-40
	for _, t := range p.Targets {
		for _, s := range t.series {
			var path strings.Builder
			move := "M"
			for _, point := range s.points {
				if math.IsNaN(point[1]) {
					move = "M"
					continue
				}
				fmt.Fprintf(&path, "%s%.0f %.0f", move, left+(point[0]-d.first)/max(d.last-d.first, 1)*(right-left), bottom-point[1]/most*(bottom-top))
				move = "L"
			}
			colour := lineColours[n%len(lineColours)]
			d.add(`<path class="l" stroke="%s" d="%s"/>`, colour, path.String())
			name := regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(t.LegendFormat, func(label string) string { return s.labels[strings.Trim(label, "{}")] })
			if room := x + width - place; room > 60 {
				d.add(`<rect x="%.0f" y="%.0f" width="8" height="8" fill="%s"/>`, place, y+height-19, colour)
				d.text(place+12, y+height-11, "", name, int((room-20)/6))
			}
			place += 26 + 6*float64(len(name))
			n++
		}
	}
}

// inUnit returns a value in one of Grafana's units.
func inUnit(value float64, unit string) string {
	number := func(value float64) string { return fmt.Sprintf("%.3g", value) }
	switch {
	case unit == "s" && value > 0 && value < 1:
		return number(value*1000) + " ms"
	case unit == "s":
		return number(value) + " s"
	case unit == "Bps" && value >= 1000:
		return number(value/1000) + " kB/s"
	case unit == "Bps":
		return number(value) + " B/s"
	case unit == "ops" || unit == "reqps":
		return number(value) + "/s"
	}
	return number(value)
}
