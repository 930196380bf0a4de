package main

import "slices"

// variant is a text that replaces another one while a condition of the chart is true.
type variant struct {
	when  string
	lines []string
}

// merge returns the base with all variants behind their conditions. With one condition the
// result is exactly its variant. Variants that change different lines can be combined.
func merge(base []string, variants []variant) []string {
	type change struct {
		removed []string  // conditions under which a line is left out
		before  []variant // lines that come before it
	}
	changes := make([]change, len(base)+1)
	for _, v := range variants {
		kept := common(base, v.lines)
		for i, j, k := 0, 0, 0; i < len(base) || j < len(v.lines); k++ {
			next := [2]int{len(base), len(v.lines)}
			if k < len(kept) {
				next = kept[k]
			}
			if added := v.lines[j:next[1]]; len(added) > 0 {
				changes[i].before = append(changes[i].before, variant{v.when, added})
			}
			for ; i < next[0]; i++ {
				changes[i].removed = append(changes[i].removed, v.when)
			}
			i, j = next[0]+1, next[1]+1
			if k >= len(kept) {
				break
			}
		}
	}
	var merged, open []string // open are the conditions of the preceding line
	end := func() {
		if len(open) > 0 {
			merged = append(merged, "{{- end }}")
		}
		open = nil
	}
	for i, c := range changes {
		if len(c.before) > 0 {
			end()
		}
		for _, v := range c.before {
			merged = append(append(append(merged, "{{- if "+v.when+" }}"), v.lines...), "{{- end }}")
		}
		if i == len(base) {
			break
		}
		if !slices.Equal(open, c.removed) {
			end()
			if open = c.removed; len(open) > 0 {
				merged = append(merged, "{{- if not "+either(open)+" }}")
			}
		}
		merged = append(merged, base[i])
	}
	end()
	return merged
}

func either(conditions []string) string {
	if len(conditions) == 1 {
		return "(" + conditions[0] + ")"
	}
	all := "(or"
	for _, c := range conditions {
		all += " (" + c + ")"
	}
	return all + ")"
}

// common returns the positions of a longest common subsequence.
func common(a, b []string) [][2]int {
	longest := make([][]int, len(a)+1)
	for i := range longest {
		longest[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if longest[i][j] = max(longest[i+1][j], longest[i][j+1]); a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	var pairs [][2]int
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs = append(pairs, [2]int{i, j})
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}
