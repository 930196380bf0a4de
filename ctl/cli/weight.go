package cli

import (
	"bytes"
	"errors"
	"fmt"
)

var (
	errTooHeavy = errors.New("object needs too much memory")
	errQuantity = errors.New("quantity can't be computed")
)

// entrySize is the overhead of a map entry in bytes.
const entrySize = 64

// valueSize is the memory that a JSON value may need: the largest struct of the API that
// is an element of a list or map has 1 KiB.
const valueSize = 1 << 10

// maxDepth is the maximum nesting of JSON values, a tenth of that of decoders.
const maxDepth = 1000

var errTooDeep = errors.New("values are nested too deeply")

// atMost returns an error if the Weight of text exceeds most.
func atMost(text []byte, most int64) error {
	weight, err := Weight(text)
	if err == nil && weight > most {
		err = fmt.Errorf("%w: more than %d bytes", errTooHeavy, most)
	}
	return err
}

// Weight returns the maximum memory of JSON in bytes when decoded into any type: each
// object, list and list element counts as the largest struct, each further member of an
// object as a map entry. It returns an error for text that must not be decoded.
func Weight(text []byte) (int64, error) {
	const memberSize = entrySize + 2*16 // a string, and an interface or string
	weight := int64(len(text))
	var lists []bool // the open values; true: a list
	for i := 0; i < len(text); {
		token := i
		switch c := text[i]; {
		case c == '{' || c == '[':
			if lists = append(lists, c == '['); len(lists) > maxDepth {
				return 0, errTooDeep
			}
			weight += valueSize
			i++
		case c == '}' || c == ']':
			lists = lists[:max(0, len(lists)-1)]
			i++
		case c == ',':
			if len(lists) == 0 || lists[len(lists)-1] {
				weight += valueSize
			} else {
				weight += memberSize
			}
			i++
		case c == '"':
			i = endOfString(text, i+1)
			if hardQuantity(text[token+1 : max(token+1, i-1)]) {
				return 0, errQuantity
			}
		case partOfNumber(c):
			for i < len(text) && partOfNumber(text[i]) {
				i++
			}
			if hardQuantity(text[token:i]) {
				return 0, errQuantity
			}
		default:
			i++
		}
	}
	return weight, nil
}

// endOfString returns the index after the closing quote of the string that begins at i.
func endOfString(text []byte, i int) int {
	for i < len(text) && text[i] != '"' {
		if text[i] == '\\' {
			i++
		}
		i++
	}
	return min(i+1, len(text))
}

func partOfNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == '+' || c == '-' || c == 'e' || c == 'E'
}

// Larger quantities are computed with that many digits (k8s.io/apimachinery,
// pkg/api/resource): 1e-2147483647 takes minutes and gigabytes.
const (
	maxDigits         = 1000
	maxExponentDigits = 3
)

// hardQuantity reports whether content, parsed as a quantity, has thousands of digits or a
// large negative exponent.
func hardQuantity(content []byte) bool {
	content = bytes.TrimSpace(content)
	mantissa := bytes.IndexFunc(content, func(r rune) bool {
		return r != '.' && r != '+' && r != '-' && (r < '0' || r > '9')
	})
	switch {
	case mantissa < 0:
		return len(content) > maxDigits
	case mantissa > maxDigits:
		return true
	case content[mantissa] != 'e' && content[mantissa] != 'E':
		return false
	}
	digits, negative := bytes.CutPrefix(content[mantissa+1:], []byte("-"))
	return negative && len(digits) > maxExponentDigits &&
		len(bytes.Trim(digits, "0123456789")) == 0
}
