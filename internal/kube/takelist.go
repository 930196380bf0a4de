package kube

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

var errMalformed = errors.New("malformed answer")

// protobufMagic starts what Kubernetes writes in protobuf: a runtime.Unknown
// follows (k8s.io/apimachinery, pkg/runtime/serializer/protobuf).
const protobufMagic = "k8s\x00"

// Numbers of fields in generated.proto of apimachinery, all of them messages or
// bytes.
const (
	unknownTypeMeta  = 1
	unknownRaw       = 2
	listMetadata     = 1
	listItems        = 2
	watchEventObject = 2
	rawExtensionRaw  = 1
	typeMetaKind     = 2
)

// takeList gives each item of a list to the request, one at a time, and returns
// the list without items. The allowance is that of the whole answer.
func takeList(from *allowance, protobuf bool, r *request) (head []byte, err error) {
	r.begin()
	if protobuf {
		return takeProtobuf(from, r)
	}
	return takeJSON(from, r)
}

func takeJSON(from *allowance, r *request) ([]byte, error) {
	d := json.NewDecoder(from)
	if err := expect(d, '{'); err != nil {
		return nil, err
	}
	head := map[string]json.RawMessage{}
	for d.More() {
		from.part(maxListHead)
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key == "items" {
			if err := takeItems(d, from, r); err != nil {
				return nil, err
			}
			continue
		}
		var value json.RawMessage
		from.part(maxListHead)
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		switch key {
		case "kind", "apiVersion", "metadata":
			if len(value) > maxListHead {
				return nil, &tooLongError{"metadata of a list", maxListHead}
			}
			head[fmt.Sprint(key)] = value
		}
	}
	if err := expect(d, '}'); err != nil {
		return nil, err
	}
	return json.Marshal(head)
}

func takeItems(d *json.Decoder, from *allowance, r *request) error {
	from.part(maxObject)
	start, err := d.Token()
	switch {
	case err != nil:
		return err
	case start == nil: // null
		return nil
	case start != json.Delim('['):
		return errMalformed
	}
	var item json.RawMessage
	for d.More() {
		from.part(maxObject)
		item = item[:0]
		if err := d.Decode(&item); err != nil {
			return err
		}
		if err := r.take(item, false); err != nil {
			return err
		}
		from.part(maxObject)
	}
	return expect(d, ']')
}

func expect(d *json.Decoder, want json.Delim) error {
	switch token, err := d.Token(); {
	case err != nil:
		return err
	case token != want:
		return errMalformed
	default:
		return nil
	}
}

// takeProtobuf reads "k8s\0" and an Unknown whose raw field is the list.
func takeProtobuf(from *allowance, r *request) ([]byte, error) {
	s := &stream{from: bufio.NewReader(from), whole: from}
	magic, err := s.take(int64(len(protobufMagic)), maxListHead)
	if err != nil {
		return nil, err
	}
	if string(magic) != protobufMagic {
		return nil, errMalformed
	}
	var kind, metadata []byte
	var raws int
	for {
		number, size, err := s.field()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch number {
		case unknownTypeMeta:
			if kind, err = s.copy(size, maxListHead); err != nil {
				return nil, err
			}
		case unknownRaw:
			if raws++; raws > 1 {
				return nil, errMalformed
			}
			if metadata, err = takeRaw(s, size, r); err != nil {
				return nil, err
			}
		default:
			if _, err := s.take(size, maxListHead); err != nil {
				return nil, err
			}
		}
	}
	head := appendField([]byte(protobufMagic), unknownTypeMeta, kind)
	return appendField(head, unknownRaw, appendField(nil, listMetadata, metadata)), nil
}

// takeRaw reads the list itself, which ends where size says.
func takeRaw(s *stream, size int64, r *request) (metadata []byte, err error) {
	for end := s.at + size; s.at < end; {
		number, size, err := s.field()
		if err != nil {
			return nil, notEOF(err)
		}
		if size > end-s.at {
			return nil, errMalformed
		}
		switch number {
		case listMetadata:
			if metadata, err = s.copy(size, maxListHead); err != nil {
				return nil, err
			}
		case listItems:
			item, err := s.take(size, maxObject)
			if err != nil {
				return nil, err
			}
			if err := r.take(item, true); err != nil {
				return nil, err
			}
		default:
			if _, err := s.take(size, maxListHead); err != nil {
				return nil, err
			}
		}
	}
	return metadata, nil
}

// stream reads protobuf as it comes.
type stream struct {
	from  *bufio.Reader
	whole *allowance
	at    int64 // bytes read
	buf   []byte
}

// ReadByte implements io.ByteReader.
func (s *stream) ReadByte() (byte, error) {
	// Reading ahead counts as well, so that it is never too little.
	s.whole.part(maxObject)
	b, err := s.from.ReadByte()
	if err == nil {
		s.at++
	}
	return b, err
}

// field reads the start of a field that has a length; the messages here have no
// others. The error is io.EOF only when there is nothing more.
func (s *stream) field() (number uint64, size int64, err error) {
	tag, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, err
	}
	if tag&7 != wireBytes {
		return 0, 0, errMalformed
	}
	length, err := binary.ReadUvarint(s)
	if err != nil {
		return 0, 0, notEOF(err)
	}
	if length > 1<<40 {
		return 0, 0, errMalformed
	}
	return tag >> 3, int64(length), nil
}

// take returns the next bytes, which are overwritten by the next call.
func (s *stream) take(size, most int64) ([]byte, error) {
	if size > most {
		return nil, &tooLongError{"an object", most}
	}
	if int64(cap(s.buf)) < size {
		s.buf = make([]byte, size)
	}
	s.buf = s.buf[:size]
	s.whole.part(maxObject)
	n, err := io.ReadFull(s.from, s.buf)
	s.at += int64(n)
	return s.buf, notEOF(err)
}

func (s *stream) copy(size, most int64) ([]byte, error) {
	content, err := s.take(size, most)
	return append([]byte(nil), content...), err
}

// notEOF is for places where an answer must not end.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func appendField(to []byte, number uint64, content []byte) []byte {
	to = binary.AppendUvarint(to, number<<3|wireBytes)
	to = binary.AppendUvarint(to, uint64(len(content)))
	return append(to, content...)
}
