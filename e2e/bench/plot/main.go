// Command plot draws the plots of docs/benchmarks.md from the figures that benchmarks write
// with -json:
//
//	go run ./e2e/bench/plot docs/benchmarks/*.jsonl
//
// Of several measurements of the same thing the newest is drawn.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

func main() {
	to := flag.String("o", filepath.Join("docs", "images"), "folder of the plots")
	flag.Parse()
	if err := run(*to, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(to string, files []string) error {
	if len(files) == 0 {
		return errors.New("no files: plot [-o FOLDER] FILE")
	}
	drawn, err := draw(files)
	if err != nil {
		return err
	}
	for name, svg := range drawn {
		if err := os.WriteFile(filepath.Join(to, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw returns the plots by their names.
func draw(files []string) (map[string][]byte, error) {
	found := figures{}
	for _, path := range files {
		if err := found.read(path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	drawn := map[string][]byte{}
	for name, plot := range plots() {
		chart, err := plot(found)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if drawn[name], err = chart.svg(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return drawn, nil
}

// figure is what results of the same thing have in common. With is part of it where two
// programs are measured beside ours.
type figure struct{ name, unit, with string }

// figures are the newest results.
type figures map[figure]measure.Result

func (f figures) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	results, err := measure.Read(file)
	if err != nil {
		return err
	}
	for _, r := range results {
		// Without what stands beside it, too: many plots draw ours alone.
		for _, with := range []string{r.With, ""} {
			at := figure{r.Name, r.Unit, with}
			if f[at].Date <= r.Date { // Dates are of one form, so that they sort as text.
				f[at] = r
			}
		}
	}
	return nil
}

// get returns a result, an error when there is none.
func (f figures) get(name, unit, with string) (measure.Result, error) {
	r, found := f[figure{name, unit, with}]
	if !found {
		return r, fmt.Errorf("no figures of %q in %q beside %q", name, unit, with)
	}
	return r, nil
}
