package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// pair is one measurement of ours and one of what ran beside it.
type pair struct{ ours, beside float64 }

// row is one line of the table.
type row struct {
	what   string
	beside string // what it is compared with
	pairs  []pair
	unit   unit
	goal   goal
}

// goal is what the ratio should be at least, or at most. The zero goal is none.
type goal struct{ atLeast, atMost float64 }

func (g goal) String() string {
	switch {
	case g.atLeast > 0:
		return fmt.Sprintf(">= %.2f", g.atLeast)
	case g.atMost > 0:
		return fmt.Sprintf("<= %.2f", g.atMost)
	}
	return ""
}

// met reports whether a ratio meets its bound.
func (g goal) met(ratio float64) bool {
	return (g.atLeast == 0 || ratio >= g.atLeast) && (g.atMost == 0 || ratio <= g.atMost)
}

// verdict is what the table says of a ratio.
func (g goal) verdict(ratio float64) string {
	if g.String() == "" {
		return ""
	}
	if g.met(ratio) {
		return g.String() + " met"
	}
	return g.String() + " MISSED"
}

// table collects rows and facts that aren't ratios.
type table struct {
	rows  []row
	notes []string
	// alone are figures of notes, for results.
	alone []measure.Result
}

func (t *table) add(r row) { t.rows = append(t.rows, r) }

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// WriteTo implements io.WriterTo. Each number is the median over the pairs; the
// ratio is the median of the pairs' ratios, with the least and the greatest.
func (t *table) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	aligned := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(aligned, "what\tours\tbeside it\t\tratio\tmin..max\tpairs\tgoal")
	for _, r := range t.rows {
		ours := spreadOf(r.pairs, func(p pair) float64 { return p.ours })
		beside := spreadOf(r.pairs, func(p pair) float64 { return p.beside })
		ratio := spreadOf(r.pairs, pair.ratio)
		fmt.Fprintf(aligned, "%s\t%s\t%s\t%s\t%.2f\t%.2f..%.2f\t%d\t%s\n", r.what, r.unit.text(ours.median), r.unit.text(beside.median),
			r.beside, ratio.median, ratio.min, ratio.max, len(r.pairs), r.goal.verdict(ratio.median))
	}
	// Writing to memory doesn't fail.
	_ = aligned.Flush()
	for _, note := range t.notes {
		fmt.Fprintln(&text, note)
	}
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

// results returns the rows as -json writes them.
func (t *table) results() []measure.Result {
	var all []measure.Result
	for _, r := range t.rows {
		var ours, beside, ratios []float64
		for _, p := range r.pairs {
			ours, beside, ratios = append(ours, p.ours*r.unit.scale), append(beside, p.beside*r.unit.scale), append(ratios, p.ratio())
		}
		all = append(all, measure.Compared(r.what, r.unit.name, r.beside, ours, beside, ratios))
	}
	return append(all, t.alone...)
}

func (p pair) ratio() float64 { return p.ours / p.beside }

// spread is what a series of measurements comes down to.
type spread struct{ median, min, max float64 }

// spreadOf reduces a series; the median of none is not a number.
func spreadOf[T any](series []T, value func(T) float64) spread {
	values := make([]float64, 0, len(series))
	for _, s := range series {
		values = append(values, value(s))
	}
	slices.SortFunc(values, cmp.Compare[float64])
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	return spread{measure.Quantile(values, 0.5), values[0], values[len(values)-1]}
}

// unit is what the values of a row are.
type unit struct {
	name  string  // in results
	scale float64 // from a value to that
	text  func(float64) string
}

// Units of the table.
var (
	bandwidth     = unit{"Gbit/s", 1e-9, gigabits}
	roundTrip     = unit{"us", 1e6, microseconds}
	duration      = unit{"s", 1, seconds}
	size          = unit{"MB", 1e-6, megabytes}
	processorTime = unit{"cores", 1, share}
	number        = unit{"", 1, count}
)

func gigabits(bitsPerSecond float64) string { return fmt.Sprintf("%.2f Gbit/s", bitsPerSecond/1e9) }

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.1f ms", s*float64(time.Second/time.Millisecond))
	}
	return fmt.Sprintf("%.2f s", s)
}

func microseconds(s float64) string { return fmt.Sprintf("%.0f us", s*1e6) }

func megabytes(bytes float64) string { return fmt.Sprintf("%.0f MB", bytes/1e6) }

func share(ofCore float64) string { return fmt.Sprintf("%.1f %% of a core", 100*ofCore) }

func count(n float64) string { return fmt.Sprintf("%.4g", n) }
