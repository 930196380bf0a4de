package kube

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	errTooHeavy = errors.New("an object that takes too much memory")
	errQuantity = errors.New("a quantity that can't be computed")
)

// Types of fields in protobuf (https://protobuf.dev/programming-guides/encoding).
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// shape says how much memory a message in protobuf takes once it is decoded into
// a struct of Go: the size of the struct itself, and the shapes of what its
// fields point to, by number.
type shape struct {
	size     int64
	fields   map[uint64]*shape
	quantity bool
}

// entrySize is what an entry of a map takes beside its key and value.
const entrySize = 64

// shapeOf returns the shape of a struct that Kubernetes' generator has written
// the protobuf tags of.
func shapeOf(t reflect.Type) *shape { return shapeIn(t, map[reflect.Type]*shape{}) }

func shapeIn(t reflect.Type, seen map[reflect.Type]*shape) *shape {
	if s := seen[t]; s != nil {
		return s
	}
	s := &shape{size: int64(t.Size()), fields: map[uint64]*shape{}}
	seen[t] = s
	if t == reflect.TypeFor[resource.Quantity]() {
		s.quantity = true
	}
	if t.Kind() != reflect.Struct {
		return s
	}
	for i := range t.NumField() {
		field := t.Field(i)
		// As in `protobuf:"bytes,2,rep,name=items"`.
		_, after, _ := strings.Cut(field.Tag.Get("protobuf"), ",")
		number, _, _ := strings.Cut(after, ",")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			continue
		}
		switch of := field.Type; of.Kind() {
		case reflect.Map:
			entry := &shape{size: entrySize + int64(of.Key().Size()+of.Elem().Size())}
			const value = 2
			entry.fields = map[uint64]*shape{value: shapeIn(of.Elem(), seen)}
			s.fields[n] = entry
		case reflect.Slice, reflect.Pointer:
			s.fields[n] = shapeIn(of.Elem(), seen)
		case reflect.Struct:
			s.fields[n] = shapeIn(of, seen)
		}
	}
	return s
}

// statusShape is the shape of an answer that isn't a success.
var statusShape = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[metav1.Status]()) })

// checkProtobuf reports whether a message may be decoded into a struct of a
// shape: it takes no more than maxDecoded, and no time to speak of.
func checkProtobuf(message []byte, s *shape) error {
	budget := int64(maxDecoded - len(message))
	return s.weigh(message, &budget)
}

func (s *shape) weigh(message []byte, budget *int64) error {
	if *budget -= s.size; *budget < 0 {
		return errTooHeavy
	}
	if s.quantity {
		return eachField(message, func(_ uint64, text []byte) error {
			if hardQuantity(text) {
				return errQuantity
			}
			return nil
		})
	}
	if len(s.fields) == 0 {
		return nil
	}
	return eachField(message, func(number uint64, content []byte) error {
		if of := s.fields[number]; of != nil {
			return of.weigh(content, budget)
		}
		return nil
	})
}

// eachField calls visit for the fields of a message that have a length.
func eachField(message []byte, visit func(number uint64, content []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errMalformed
		}
		message = message[n:]
		skip := 0
		switch tag & 7 {
		case wireVarint:
			if _, skip = binary.Uvarint(message); skip <= 0 {
				return errMalformed
			}
		case wireFixed64:
			skip = 8
		case wireFixed32:
			skip = 4
		case wireBytes:
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return errMalformed
			}
			skip = n + int(size)
			if err := visit(tag>>3, message[n:skip]); err != nil {
				return err
			}
		default:
			return errMalformed // groups, which nobody writes
		}
		if skip > len(message) {
			return errMalformed
		}
		message = message[skip:]
	}
	return nil
}

// valueSize is what a value in JSON may take in memory: the largest struct of
// the API that is an element of something has 1 KiB.
const valueSize = 1 << 10

// maxDepth is how deeply values in JSON may be nested; decoders go no deeper than ten
// times as far.
const maxDepth = 1000

var errTooDeep = errors.New("values that are nested too deeply")

// checkJSON is checkProtobuf for JSON.
func checkJSON(text []byte) error { return atMost(text, maxDecoded) }

// atMost reports whether JSON may be decoded: it has no more than so much Weight.
func atMost(text []byte, most int64) error {
	weight, err := Weight(text)
	if err == nil && weight > most {
		err = fmt.Errorf("%w: more than %d bytes", errTooHeavy, most)
	}
	return err
}

// Weight returns what JSON may take in memory, in bytes, once it is decoded, whatever it is
// decoded into: each object, each list and each element of a list counts as the largest
// struct, each further member of an object as an entry of a map. An error is that it may
// not be decoded at all.
func Weight(text []byte) (int64, error) {
	const memberSize = entrySize + 2*16 // a text, and an interface or another one
	weight := int64(len(text))
	var lists []bool // of what is open, which are lists
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

// endOfString returns where the string that begins at i ends, behind its quote.
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

// Quantities beyond these are computed with numbers of as many digits
// (k8s.io/apimachinery, pkg/api/resource): 1e-2147483647 takes minutes and
// gigabytes.
const (
	maxDigits         = 1000
	maxExponentDigits = 3
)

// hardQuantity reports whether content, read as a quantity, has thousands of
// digits or is a power of ten far below one.
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
