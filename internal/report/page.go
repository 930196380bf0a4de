// Package report is the command "status" of the programs: it asks the process
// on the same machine for its report and prints it for people, with what is
// wrong at the end.
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

// Page is a report as it is shown to people. What is put into it needs no
// care: everything is made fit for a terminal when it is printed.
type Page struct {
	// Now is when the report was asked for; ages count from here.
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

// Wrong adds something that is not as it should be. It makes the exit code 1.
func (p *Page) Wrong(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// Unknown adds something of which there is no sign that it is as it should be, nor
// that it isn't. It makes the exit code 3, unless something is wrong.
func (p *Page) Unknown(format string, args ...any) {
	p.unknown = append(p.unknown, fmt.Sprintf(format, args...))
}

// freshContact is for how long the answer of an API server counts. It sends a bookmark
// about every minute when nothing changes.
const freshContact = 150 * time.Second

// Contact says so when what was last heard of an API server is too old for the rest of
// the page to be taken for granted.
func (p *Page) Contact(what string, last *time.Time) {
	if last == nil || p.Now.Sub(*last) > freshContact {
		p.Unknown("%s: the API server was last heard %s", what, p.Age(last))
	}
}

// Failing adds an error that the program reports, unless it is empty.
func (p *Page) Failing(what, err string) {
	if err != "" {
		p.Wrong("%s: %s", what, err)
	}
}

// Failures adds the errors of several things, by what they are.
func (p *Page) Failures(errs map[string]string) {
	for _, what := range slices.Sorted(maps.Keys(errs)) {
		p.Failing(what, errs[what])
	}
}

// Watch says what is wrong with the watch of something, if anything is.
func (p *Page) Watch(what string, synced bool, last *time.Time, err string) {
	switch {
	case err != "":
		p.Failing(what, err)
	case !synced:
		p.Wrong("%s: not read since start", what)
	default:
		p.Contact(what, last)
	}
}

// Replica says which replica writes: this one, or the leader, as far as it knows. One
// that doesn't write knows less than the leader. The error is that of the election.
func (p *Page) Replica(writes bool, leader, knowsNot, err string) {
	switch {
	case writes:
		p.Line("this replica writes")
	case leader == "":
		p.Wrong("no replica writes, as far as this one knows")
	default:
		p.Line("replica %s writes; this one would take over, and doesn't know of %s", leader, knowsNot)
	}
	p.Failing("election", err)
}

// Table adds a table. Without rows it isn't shown.
func (p *Page) Table(header ...string) *Table {
	t := &Table{rows: [][]string{header}}
	p.parts = append(p.parts, t)
	return t
}

// Age writes how long before Now something was.
func (p *Page) Age(at *time.Time) string { return Age(p.Now, at) }

// print writes the page: the parts, an empty line before each table, and what
// is wrong.
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

// printComplaints writes what is wrong, and what isn't known.
func (p *Page) printComplaints(b *strings.Builder) {
	for _, part := range []struct {
		title string
		texts []string
	}{{"wrong", p.wrong}, {"not known to be well", p.unknown}} {
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
		// A strings.Builder takes everything; so does what writes to one.
		_, _ = io.WriteString(w, strings.Join(clean, "\t")+"\n")
	}
	_ = w.Flush()
}
