package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// licencesCommand lists the modules with their licences, or prints the texts
// that have to accompany the programs.
func licencesCommand(ctx context.Context, in invocation) error {
	texts := in.flags.Bool("texts", false, "print the texts that have to accompany the programs, instead of a table")
	file := in.flags.String("o", "", "write into this `file`")
	if err := in.parse(0); err != nil {
		return err
	}
	found, err := takeInventory(ctx, in.root)
	if err != nil {
		return err
	}
	form := licenceTable
	if *texts {
		form = licenceTexts
	}
	content, err := form(found.modules)
	if err != nil {
		return err
	}
	return in.emit(*file, content)
}

func licenceTable(modules []module) ([]byte, error) {
	var out bytes.Buffer
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MODULE\tVERSION\tLICENCE")
	for _, m := range modules {
		fmt.Fprintf(table, "%s\t%s\t%s\n", m.path, m.version, m.licence.expression())
	}
	err := table.Flush()
	return out.Bytes(), err
}

func licenceTexts(modules []module) ([]byte, error) {
	var out bytes.Buffer
	for _, m := range modules {
		for _, file := range m.licence.files {
			content, err := os.ReadFile(filepath.Join(m.dir, file))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&out, "==== %s %s: %s\n\n%s\n\n", m.path, m.version, file, bytes.TrimSpace(content))
		}
	}
	return out.Bytes(), nil
}
