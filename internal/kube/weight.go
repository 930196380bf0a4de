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
	errTooHeavy = errors.New("object needs too much memory")
	errQuantity = errors.New("quantity can't be computed")
)

// Wire types of protobuf (https://protobuf.dev/programming-guides/encoding).
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// shape describes the memory of a protobuf message when decoded into a Go struct: the size
// of the struct, and the shapes of what its fields point to, by field number.
type shape struct {
	size     int64
	fields   map[uint64]*shape
	quantity bool
}

// entrySize is the overhead of a map entry in bytes.
const entrySize = 64

// shapeOf returns the shape of a struct with generated protobuf tags.
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

// statusShape is the shape of an error response.
var statusShape = sync.OnceValue(func() *shape { return shapeOf(reflect.TypeFor[metav1.Status]()) })

// checkProtobuf returns an error if decoding a message into a struct of a shape may need
// more than maxDecoded bytes, or too much time.
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

// eachField calls visit for the length-delimited fields of a message.
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
			return errMalformed // groups, which Kubernetes doesn't use
		}
		if skip > len(message) {
			return errMalformed
		}
		message = message[skip:]
	}
	return nil
}

// valueSize is the memory that a JSON value may need: the largest struct of the API that
// is an element of a list or map has 1 KiB.
const valueSize = 1 << 10

// maxDepth is the maximum nesting of JSON values, a tenth of that of decoders.
const maxDepth = 1000

var errTooDeep = errors.New("values are nested too deeply")

// checkJSON is checkProtobuf for JSON.
func checkJSON(text []byte) error { return atMost(text, maxDecoded) }

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
