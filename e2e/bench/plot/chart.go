package main

import (
	"bytes"
	"errors"
	"math"
	"text/template"
)

// chart is horizontal bars in groups, on a linear scale from 0.
type chart struct {
	Title, Note string
	// Series are named in the legend.
	Series []string
	Groups []group
	// Line is a value at which a line is drawn; 0: none.
	Line float64
}

type group struct {
	Label string
	Bars  []bar
}

type bar struct {
	Series int
	Value  float64
	// Low and High are the ends of a spread; 0: none.
	Low, High float64
	Text      string
}

// Sizes in pixels.
const (
	width     = 760
	left      = 246 // where bars begin
	right     = 690 // where the longest one ends
	top       = 92
	barHeight = 15
	barStep   = 18
	groupStep = 12 // between groups, besides
)

// The background is the plot's own, so that it can be read on pages of either theme.
var svg = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" aria-label="{{html .Title}}">
<style>
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; } .note { fill: #59636e; }
  .page { fill: #ffffff; stroke: #d1d9e0; } .s0 { fill: #2f6fdb; } .s1 { fill: #d9822b; }
  .spread { stroke: #1f2328; stroke-width: 1.5; } .line { stroke: #59636e; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .note { fill: #9198a1; }
    .page { fill: #151b23; stroke: #3d444d; } .s0 { fill: #4c8df6; } .s1 { fill: #dd9b52; }
    .spread { stroke: #f0f6fc; } .line { stroke: #9198a1; }
  }
</style>
<rect class="page" x="0.5" y="0.5" width="{{.PageWidth}}" height="{{.PageHeight}}" rx="8"/>
<text class="title" x="20" y="32">{{html .Title}}</text>
<text class="note" x="20" y="53">{{html .Note}}</text>
{{range .Legend}}<rect class="s{{.Series}}" x="{{.X}}" y="66" width="12" height="12" rx="2"/><text x="{{.LabelX}}" y="77">{{html .Text}}</text>
{{end}}{{range .Labels}}<text x="20" y="{{.Y}}">{{html .Text}}</text>
{{end}}{{range .Bars}}<rect class="s{{.Series}}" x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="{{.Height}}" rx="2"/><text x="{{.TextX}}" y="{{.TextY}}">{{html .Text}}</text>
{{if .Spread}}<path class="spread" d="M{{.Low}} {{.Middle}}H{{.High}}"/>
{{end}}{{end}}{{if .LineX}}<path class="line" d="M{{.LineX}} {{.LineTop}}V{{.LineEnd}}"/>
{{end}}</svg>
`))

// shape is what the template draws of a label or a bar, in pixels.
type shape struct {
	Series               int
	X, Y, Width, Height  float64
	LabelX, TextX, TextY float64
	Low, High, Middle    float64
	Spread               bool
	Text                 string
}

// svg returns the chart as a picture.
func (c *chart) svg() ([]byte, error) {
	longest := c.Line
	for _, g := range c.Groups {
		for _, b := range g.Bars {
			if b.Value < 0 || math.IsNaN(b.Value) {
				return nil, errors.New("bars are of numbers from 0")
			}
			longest = max(longest, b.Value, b.High)
		}
	}
	if longest == 0 {
		return nil, errors.New("there is nothing to draw")
	}
	at := func(value float64) float64 { return pixel(left + value/longest*(right-left)) }
	var labels, bars, legend []shape
	y := float64(top)
	for _, g := range c.Groups {
		labels = append(labels, shape{Y: pixel(y + float64(len(g.Bars)*barStep)/2 + 3), Text: g.Label})
		for _, b := range g.Bars {
			bars = append(bars, shape{
				Series: b.Series, X: left, Y: y, Width: pixel(max(1, at(b.Value)-left)), Height: barHeight,
				TextX: at(max(b.Value, b.High)) + 6, TextY: y + 12, Text: b.Text,
				Low: at(b.Low), High: at(b.High), Middle: y + barHeight/2.0, Spread: b.High > 0,
			})
			y += barStep
		}
		y += groupStep
	}
	x := float64(20)
	for i, name := range c.Series {
		legend = append(legend, shape{Series: i, X: x, LabelX: x + 18, Text: name})
		x += 50 + 7*float64(len(name))
	}
	var picture bytes.Buffer
	drawing := struct {
		*chart
		Width, Height           float64
		PageWidth, PageHeight   float64
		Labels, Bars, Legend    []shape
		LineX, LineTop, LineEnd float64
	}{chart: c, Width: width, Height: y + 4, PageWidth: width - 1, PageHeight: y + 3, Labels: labels, Bars: bars, Legend: legend, LineTop: top - 6, LineEnd: y - groupStep + 4}
	if c.Line > 0 {
		drawing.LineX = at(c.Line)
	}
	err := svg.Execute(&picture, drawing)
	return picture.Bytes(), err
}

// pixel rounds to tenths, so that a picture changes only where its figures do.
func pixel(x float64) float64 { return math.Round(x*10) / 10 }
