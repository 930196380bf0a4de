// Package status is the command "status" of the programs: it asks the process
// on the same machine for its report and prints it for people, with what is
// wrong at the end.
package status

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Page is a report as it is shown to people. What is put into it needs no
// care: everything is made fit for a terminal when it is printed.
type Page struct {
	// Now is when the report was asked for; ages count from here.
	Now time.Time

	parts []part
	wrong []string
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

// Failing adds an error that the program reports, unless it is empty.
func (p *Page) Failing(what, err string) {
	if err != "" {
		p.Wrong("%s: %s", what, err)
	}
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
	if len(p.wrong) == 0 {
		b.WriteString("all is well\n")
	}
	p.printWrong(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *Page) printWrong(b *strings.Builder) {
	if len(p.wrong) > 0 {
		b.WriteString("wrong:\n")
	}
	for _, text := range p.wrong {
		b.WriteString("  " + printable.Text(text, printable.Short) + "\n")
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
	const gap = 2
	widths := make([]int, len(t.rows[0]))
	clean := make([][]string, len(t.rows))
	for y, row := range t.rows {
		clean[y] = make([]string, len(row))
		for x, cell := range row {
			if cell == "" {
				cell = "-"
			}
			clean[y][x] = printable.Text(cell, printable.Short)
			widths[x] = max(widths[x], len(clean[y][x]))
		}
	}
	b.WriteByte('\n')
	for _, row := range clean {
		var text strings.Builder
		for x, cell := range row {
			fmt.Fprintf(&text, "%-*s", widths[x]+gap, cell)
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
}
