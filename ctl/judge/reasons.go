package judge

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed reasons.yaml
var reasonsFile []byte

// reason is what reasons.yaml says of one, with the groups in its lists expanded.
type reason struct {
	ID          string
	Text, Many  string
	Remedy      string
	ExplainedBy []string
	EitherSide  []string
	Cases       map[string]*reason

	local, whole, alone, mutual bool
}

// reasons returns all reasons, roots first.
func reasons() ([]*reason, error) {
	type entry struct {
		Text        string   `json:"text"`
		Remedy      string   `json:"remedy"`
		ExplainedBy []string `json:"explainedBy"`
	}
	var file struct {
		Groups  map[string][]string `json:"groups"`
		Reasons []struct {
			entry
			ID         string           `json:"reason"`
			Is         []string         `json:"is"`
			Many       string           `json:"many"`
			EitherSide []string         `json:"eitherSide"`
			Cases      map[string]entry `json:"cases"`
		} `json:"reasons"`
	}
	if err := yaml.UnmarshalStrict(reasonsFile, &file); err != nil {
		return nil, fmt.Errorf("reasons.yaml: %w", err)
	}
	var expand func(names []string) []string
	expand = func(names []string) (all []string) {
		for _, name := range names {
			if group := file.Groups[name]; group != nil {
				all = append(all, expand(group)...)
			} else {
				all = append(all, name)
			}
		}
		return all
	}
	var all []*reason
	for i := range file.Reasons {
		r := &file.Reasons[i]
		is := func(what string) bool { return slices.Contains(r.Is, what) }
		one := &reason{
			ID: r.ID, Text: r.Text, Many: r.Many, Remedy: r.Remedy, ExplainedBy: expand(r.ExplainedBy), EitherSide: expand(r.EitherSide),
			Cases: map[string]*reason{}, local: is("local"), whole: is("whole"), alone: is("alone"), mutual: is("mutual"),
		}
		for name, c := range r.Cases {
			one.Cases[name] = &reason{Text: c.Text, Remedy: c.Remedy, ExplainedBy: expand(c.ExplainedBy)}
		}
		all = append(all, one)
	}
	return all, nil
}

// fill fills in the words of a text about a finding.
func (f *Finding) fill(text string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	s := f.Scope
	// In one pass: a value that contains such a word stays as it is.
	return strings.NewReplacer(append([]string{"{cluster}", s.Cluster, "{node}", s.Node, "{remote}", s.Remote, "{peer}", s.Peer}, f.With...)...).Replace(text)
}

// text returns the text of a finding.
func (r *reason) text(f *Finding) string {
	if c := r.Cases[f.Case]; c != nil && c.Text != "" {
		return f.fill(c.Text)
	}
	return f.fill(r.Text)
}

// remedy returns the remedy for a finding.
func (r *reason) remedy(f *Finding) string {
	if c := r.Cases[f.Case]; c != nil && c.Remedy != "" {
		return f.fill(c.Remedy)
	}
	return f.fill(r.Remedy)
}
