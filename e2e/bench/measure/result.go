package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Result is one row of a benchmark's table, as -json writes it. Ours, Beside and Ratio are
// medians; nil where the benchmark has no such figure.
type Result struct {
	Name string   `json:"name"`
	Unit string   `json:"unit"`
	Ours *float64 `json:"ours,omitempty"`
	// With names the program that was measured beside ours.
	With   string   `json:"with,omitempty"`
	Beside *float64 `json:"beside,omitempty"`
	// Ratio is the median of the pairs' ratios, Spread their least and greatest.
	Ratio  *float64  `json:"ratio,omitempty"`
	Spread []float64 `json:"spread,omitempty"`
	Pairs  int       `json:"pairs,omitempty"`
	// Machine, Date (of UTC) and Command are where, when and how it was measured.
	Machine string `json:"machine"`
	Date    string `json:"date"`
	Command string `json:"command"`
}

// Alone returns the result of a measurement that has nothing beside it.
func Alone(name, unit string, value float64) Result {
	return Result{Name: name, Unit: unit, Ours: finite(value)}
}

// Compared returns the result of measurements in pairs: medians of both sides, and the
// ratio of each pair.
func Compared(name, unit, with string, ours, beside, ratios []float64) Result {
	r := Result{Name: name, Unit: unit, With: with, Ours: median(ours), Beside: median(beside), Ratio: median(ratios), Pairs: len(ratios)}
	if r.Ratio != nil && finite(slices.Min(ratios)) != nil && finite(slices.Max(ratios)) != nil {
		r.Spread = []float64{*finite(slices.Min(ratios)), *finite(slices.Max(ratios))}
	}
	return r
}

func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	return finite(Quantile(slices.Sorted(slices.Values(values)), 0.5))
}

// finite rounds to four digits; nil for what JSON has no number for, as the ratio to 0.
func finite(value float64) *float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nil
	}
	if value == 0 {
		return &value
	}
	digit := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(value))))
	return new(math.Round(value*digit) / digit)
}

// Append adds results to a file, one JSON object on each line, with this machine, today's
// date and the command line. Without a path it does nothing.
func Append(path, program string, results []Result) error {
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	machine, date, command := Machine(), time.Now().UTC().Format(time.DateOnly), commandLine(program, os.Args[1:])
	to := json.NewEncoder(file)
	to.SetEscapeHTML(false)
	for _, r := range results {
		r.Machine, r.Date, r.Command = machine, date, command
		if err = to.Encode(r); err != nil {
			break
		}
	}
	return errors.Join(err, file.Close())
}

// commandLine is how a program was started, without -json and its file.
func commandLine(program string, args []string) string {
	words := []string{"go run " + program}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if name == "json" {
			if !joined {
				i++
			}
			continue
		}
		if word := args[i]; strings.ContainsAny(word, " \t*?'\"$") {
			words = append(words, strconv.Quote(word))
		} else {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// Machine describes this machine: cores, processor and kernel. The host's name is left out.
func Machine() string {
	text := fmt.Sprintf("%d cores", runtime.NumCPU())
	if content, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(content)) {
			if name, model, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				text += ", " + strings.TrimSpace(model)
				break
			}
		}
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err == nil {
		text += ", Linux " + unix.ByteSliceToString(kernel.Release[:])
	}
	return text
}

// Read returns the results in what Append has written.
func Read(from io.Reader) ([]Result, error) {
	var results []Result
	decoder := json.NewDecoder(from)
	decoder.DisallowUnknownFields()
	for {
		var r Result
		err := decoder.Decode(&r)
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err == nil && (r.Name == "" || r.Date == "" || r.Machine == "" || r.Command == "" || len(r.Spread) != 0 && len(r.Spread) != 2) {
			err = errors.New("name, machine, date or command is missing, or the spread isn't two numbers")
		}
		if err != nil {
			return nil, fmt.Errorf("result %d: %w", len(results)+1, err)
		}
		results = append(results, r)
	}
}
