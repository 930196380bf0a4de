package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// widest is the largest number of columns of a printed matrix: more don't fit into a line.
const widest = 16

// Text prints a view for people; wide adds a line for each path.
func (v *View) Text(to io.Writer, wide bool) error {
	var b strings.Builder
	v.clusters(&b)
	for i := range v.Meshes {
		v.Meshes[i].text(&b, v.Taken, wide)
	}
	v.importsText(&b)
	list(&b, "wrong", v.Wrong)
	list(&b, "unknown", v.Unknown)
	if len(v.Wrong)+len(v.Unknown) == 0 {
		b.WriteString("\nno faults found\n")
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// table prints rows; cells may contain any text.
func table(b *strings.Builder, rows [][]string) {
	b.WriteString("\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable.Text(cmp.Or(cell, "-"), 80)
		}
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t")) // A strings.Builder returns no errors.
	}
	_ = w.Flush()
}

func list(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString("\n" + title + ":\n")
	for _, line := range lines {
		b.WriteString("  " + printable.Text(line, 2*printable.Short) + "\n")
	}
}

func (v *View) clusters(b *strings.Builder) {
	rows := [][]string{{"CLUSTER", "CONTEXT", "KUBERNETES", "TOOL", "READY", "VERSION"}}
	for i := range v.Clusters {
		c := &v.Clusters[i]
		if len(c.Tools) == 0 {
			rows = append(rows, []string{c.Name, c.Context, cmp.Or(c.Kubernetes, "not reached"), "", "", ""})
		}
		for _, t := range c.Tools {
			rows = append(rows, []string{c.Name, c.Context, c.Kubernetes, t.Name, fmt.Sprintf("%d/%d", t.Ready, t.Wanted), strings.Join(t.Versions, ", ")})
		}
	}
	table(b, rows)
	separator := "\n"
	for i := range v.Clusters {
		if c := &v.Clusters[i]; c.Relay != nil {
			fmt.Fprintf(b, "%s%s: %s\n", separator, c.Name, c.Relay)
			separator = ""
		}
	}
	for i := range v.Clusters {
		for _, s := range v.Clusters[i].Subnets {
			fmt.Fprintf(b, "%s%s: other clusters know its pods %s as %s\n", separator, v.Clusters[i].Name, s.Real, s.Virtual)
			separator = ""
		}
	}
}

func (r *Relay) String() string {
	return fmt.Sprintf("agents read the nodes of %s from semaphore-relay; %d of %s up to date", cli.Count(r.Clusters, "cluster"), r.Current, cli.Count(r.Agents, "agent"))
}

func (m *Mesh) text(b *strings.Builder, now time.Time, wide bool) {
	fmt.Fprintf(b, "\n%s to %s: %d paths up, %d down, %d unknown; backend %s; last contact with API server %s\n",
		m.From, m.To, m.Counts.Up, m.Counts.Down, m.Counts.Unknown, printable.Text(cmp.Or(strings.Join(m.Backends, ", "), "-"), 80), age(now, m.Contact))
	if len(m.Columns) <= widest && len(m.Rows) > 0 {
		rows := [][]string{append([]string{"FROM \\ TO"}, m.Columns...)}
		for i, row := range m.Rows {
			cells := []string{row}
			for j := range m.Columns {
				cells = append(cells, m.Paths[i][j].short())
			}
			rows = append(rows, cells)
		}
		table(b, rows)
	}
	rows := [][]string{{"FROM", "TO", "STATE", "SIGN", "SINCE", "LATENCY", "ENDPOINT", "WHY"}}
	for i, row := range m.Rows {
		for j, column := range m.Columns {
			p := &m.Paths[i][j]
			if wide || (p.State != Up || p.SmallOnly) && len(m.Columns) > widest && len(rows) <= maxLines {
				rows = append(rows, []string{row, column, p.State, p.Sign, age(now, p.Since), latency(p.RTT), p.Endpoint, p.Why})
			}
		}
	}
	if len(rows) > 1 {
		table(b, rows)
	}
}

// short returns the text of a path's cell.
func (p *Path) short() string {
	switch {
	case p.State == Up && p.SmallOnly:
		return strings.TrimSpace(latency(p.RTT) + " (small packets only)")
	case p.State == Up:
		return cmp.Or(latency(p.RTT), Up)
	case p.Sign != "":
		return p.State + " (" + p.Sign + ")"
	}
	return p.State
}

func latency(seconds float64) string {
	if seconds <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f ms", seconds*1000)
}

// age formats a time relative to now.
func age(now time.Time, at *time.Time) string {
	if at == nil || at.IsZero() {
		return "never"
	}
	return max(0, now.Sub(*at)).Round(time.Second).String() + " ago"
}
