package mcs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Incumbent is an export that an import was computed from.
type Incumbent struct{ Cluster, Mark string }

// markLength is the length of Export.Mark, in hexadecimal.
const markLength = 16

func mark(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return hex.EncodeToString(sum[:])[:markLength]
}

// ParseIncumbents reads the annotation of an import. Invalid entries are dropped.
func ParseIncumbents(annotation string) []Incumbent {
	var all []Incumbent
	for entry := range strings.SplitSeq(annotation, ",") {
		cluster, mark, ok := strings.Cut(entry, "/")
		if ok && len(mark) == markLength && len(validation.IsDNS1123Label(cluster)) == 0 {
			all = append(all, Incumbent{cluster, mark})
		}
	}
	return all
}

// FormatIncumbents returns the annotation of an import.
func FormatIncumbents(all []Incumbent) string {
	text := make([]string, 0, len(all))
	for _, i := range all {
		text = append(text, i.Cluster+"/"+i.Mark)
	}
	return strings.Join(text, ",")
}

// Rank sorts offers by precedence: where they differ, the first one decides.
//
//  1. exports that the running import was computed from, in its order
//  2. the others by creation time, in seconds, then by the name of the cluster
//
// Without a running import that is the order of KEP-1645. With one, a new export can't decide
// by stating an early time, nor one that was deleted and created again.
func Rank(offers []Offer, running []Incumbent) {
	place := func(o *Offer) int {
		if at := slices.Index(running, Incumbent{o.Cluster, o.Mark}); at >= 0 {
			return at
		}
		return len(running)
	}
	slices.SortFunc(offers, func(a, b Offer) int {
		return cmp.Or(
			cmp.Compare(place(&a), place(&b)),
			cmp.Compare(a.Created.Unix(), b.Created.Unix()),
			cmp.Compare(a.Cluster, b.Cluster),
		)
	})
}
