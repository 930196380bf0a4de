// Package report has the command "status" of the programs: it requests the report of the
// process on the same machine and prints it, with the problems at the end.
package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Page is a report in readable form. All text is made printable when it is printed.
type Page struct {
	// Now is when the report was requested, for ages.
	Now time.Time

	parts   []part
	wrong   []string
	unknown []string
}

// part is a line or a table.
type part interface{ print(b *strings.Builder) }

type line string

func (l line) print(b *strings.Builder) {
	b.WriteString(printable.Text(string(l), printable.Short) + "\n")
}

// Line adds a line of text.
func (p *Page) Line(format string, args ...any) {
	p.parts = append(p.parts, line(fmt.Sprintf(format, args...)))
}

// Wrong adds a problem. The exit code is 1 then.
func (p *Page) Wrong(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// Unknown adds something whose state is unknown. The exit code is 2 then, unless something
// is wrong.
func (p *Page) Unknown(format string, args ...any) {
	p.unknown = append(p.unknown, fmt.Sprintf(format, args...))
}

// freshContact is the maximum age of an API server's last response: API servers send
// bookmarks about once a minute.
const freshContact = 150 * time.Second

// Contact adds something unknown if the last response of an API server is too old, as the
// rest of the page may be outdated then.
func (p *Page) Contact(what string, last *time.Time) {
	if last == nil || p.Now.Sub(*last) > freshContact {
		p.Unknown("%s: last response of the API server: %s", what, p.Age(last))
	}
}

// Failing adds an error that the program reports, unless it is empty.
func (p *Page) Failing(what, err string) {
	if err != "" {
		p.Wrong("%s: %s", what, err)
	}
}

// Failures adds the errors of several things, by name.
func (p *Page) Failures(errs map[string]string) {
	for _, what := range slices.Sorted(maps.Keys(errs)) {
		p.Failing(what, errs[what])
	}
}

// Watch adds the problems of a watch.
func (p *Page) Watch(what string, synced bool, last *time.Time, err string) {
	switch {
	case err != "":
		p.Failing(what, err)
	case !synced:
		p.Wrong("%s: not synced since start", what)
	default:
		p.Contact(what, last)
	}
}

// Replica adds which replica writes: this one, or the known leader. A replica that doesn't
// write has less information than the leader: knowsNot is what it lacks. err is the error of
// the leader election.
func (p *Page) Replica(writes bool, leader, knowsNot, err string) {
	switch {
	case writes:
		p.Line("this replica writes")
	case leader == "":
		p.Wrong("no replica writes, as far as this one knows")
	default:
		p.Line("replica %s writes; this one stands by, and has no information about %s", leader, knowsNot)
	}
	p.Failing("election", err)
}

// Table adds a table. Without rows it isn't shown.
func (p *Page) Table(header ...string) *Table {
	t := &Table{rows: [][]string{header}}
	p.parts = append(p.parts, t)
	return t
}

// Age returns the age of a time at Now, such as "3s ago".
func (p *Page) Age(at *time.Time) string { return Age(p.Now, at) }

// print writes the page: the parts, an empty line before each table, and the problems.
func (p *Page) print(w io.Writer) error {
	var b strings.Builder
	for _, part := range p.parts {
		part.print(&b)
	}
	b.WriteByte('\n')
	if len(p.wrong)+len(p.unknown) == 0 {
		b.WriteString("all is well\n")
	}
	p.printComplaints(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// printComplaints writes the problems and the unknown states.
func (p *Page) printComplaints(b *strings.Builder) {
	for _, part := range []struct {
		title string
		texts []string
	}{{"wrong", p.wrong}, {"unknown", p.unknown}} {
		if len(part.texts) > 0 {
			b.WriteString(part.title + ":\n")
		}
		for _, text := range part.texts {
			b.WriteString("  " + printable.Text(text, printable.Short) + "\n")
		}
	}
}

// Table is a table in a Page.
type Table struct{ rows [][]string }

// Row adds a row with a cell for each column. An empty cell is shown as "-".
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *Table) print(b *strings.Builder) {
	if len(t.rows) == 1 {
		return
	}
	b.WriteByte('\n')
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		clean := make([]string, len(row))
		for x, cell := range row {
			clean[x] = printable.Text(cmp.Or(cell, "-"), printable.Short)
		}
		// Writes to a strings.Builder never fail.
		_, _ = io.WriteString(w, strings.Join(clean, "\t")+"\n")
	}
	_ = w.Flush()
}
