package cli

import (
	"fmt"
	"slices"
	"strings"
)

// Count returns a number with its regular noun: "1 node", "2 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Are is Count with a verb: "1 fault is", "2 faults are".
func Are(n int, noun string) string {
	if n == 1 {
		return Count(n, noun) + " is"
	}
	return Count(n, noun) + " are"
}

// Of is a part of a number with a verb: "1 of 4 paths is", "2 of 4 paths are".
func Of(n, of int, noun string) string {
	verb := "are"
	if n == 1 || of == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %s %s", n, Count(of, noun), verb)
}

// And joins words: "a, b and c".
func And(words ...string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// Some is And for at most so many of the words, and the number of the others: "a, b and 3
// more".
func Some(most int, words ...string) string {
	if more := len(words) - most; more > 0 {
		words = append(slices.Clone(words[:most]), fmt.Sprintf("%d more", more))
	}
	return And(words...)
}
