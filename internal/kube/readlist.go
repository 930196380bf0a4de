package kube

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

var errMalformed = errors.New("malformed response")

// protobufMagic precedes a runtime.Unknown in Kubernetes' protobuf format
// (k8s.io/apimachinery, pkg/runtime/serializer/protobuf).
const protobufMagic = "k8s\x00"

// Field numbers in generated.proto of apimachinery; all are messages or bytes.
const (
	unknownTypeMeta  = 1
	unknownRaw       = 2
	listMetadata     = 1
	listItems        = 2
	watchEventObject = 2
	rawExtensionRaw  = 1
	typeMetaKind     = 2
)

// readList passes each item of a list to the request, and returns the list without items.
// The allowance is that of the whole response.
func readList(from *allowance, protobuf bool, r *request) (head []byte, err error) {
	r.begin()
	if protobuf {
		return readListProtobuf(from, r)
	}
	return readListJSON(from, r)
}

func readListJSON(from *allowance, r *request) ([]byte, error) {
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
			if err := readItems(d, from, r); err != nil {
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
				return nil, &tooLongError{"list metadata", maxListHead}
			}
			head[fmt.Sprint(key)] = value
		}
	}
	if err := expect(d, '}'); err != nil {
		return nil, err
	}
	return json.Marshal(head)
}

func readItems(d *json.Decoder, from *allowance, r *request) error {
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
		if err := r.decodeItem(item, false); err != nil {
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

// readListProtobuf reads "k8s\0" and an Unknown whose field raw is the list.
func readListProtobuf(from *allowance, r *request) ([]byte, error) {
	s := &stream{from: bufio.NewReader(from), whole: from}
	magic, err := s.next(int64(len(protobufMagic)), maxListHead)
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
			if metadata, err = readListMessage(s, size, r); err != nil {
				return nil, err
			}
		default:
			if _, err := s.next(size, maxListHead); err != nil {
				return nil, err
			}
		}
	}
	head := appendField([]byte(protobufMagic), unknownTypeMeta, kind)
	return appendField(head, unknownRaw, appendField(nil, listMetadata, metadata)), nil
}

// readListMessage reads the list itself, of that size.
func readListMessage(s *stream, size int64, r *request) (metadata []byte, err error) {
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
			item, err := s.next(size, maxObject)
			if err != nil {
				return nil, err
			}
			if err := r.decodeItem(item, true); err != nil {
				return nil, err
			}
		default:
			if _, err := s.next(size, maxListHead); err != nil {
				return nil, err
			}
		}
	}
	return metadata, nil
}

// stream decodes protobuf incrementally.
type stream struct {
	from  *bufio.Reader
	whole *allowance
	at    int64 // bytes read
	buf   []byte
}

// ReadByte implements io.ByteReader.
func (s *stream) ReadByte() (byte, error) {
	// The buffered reader may read ahead by more than the field.
	s.whole.part(maxObject)
	b, err := s.from.ReadByte()
	if err == nil {
		s.at++
	}
	return b, err
}

// field reads the tag and length of a length-delimited field; the messages here have no
// others. The error is io.EOF only at the end of the stream.
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

// next returns the next bytes, which are overwritten by the next call.
func (s *stream) next(size, most int64) ([]byte, error) {
	if size > most {
		return nil, &tooLongError{"object", most}
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
	content, err := s.next(size, most)
	return append([]byte(nil), content...), err
}

// notEOF is for positions where the response must not end.
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
