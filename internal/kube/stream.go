package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	errMalformed = errors.New("malformed response")
	errWrongType = errors.New("value of an unexpected type")
)

// stream decodes a response part by part, each with a maximum size in bytes.
type stream struct {
	*json.Decoder
	from *allowance
}

func newStream(body io.Reader) *stream {
	from := &allowance{from: body}
	return &stream{json.NewDecoder(from), from}
}

// decode decodes the next value. After all errors but errWrongType the stream is unusable.
func (s *stream) decode(into any) error {
	err := s.Decode(into)
	var syntax *json.SyntaxError
	if err == nil || s.from.failed || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, &syntax) {
		return err
	}
	return fmt.Errorf("%w: %w", errWrongType, err)
}

func (s *stream) expect(want json.Delim) error {
	switch token, err := s.Token(); {
	case err != nil:
		return err
	case token != want:
		return errMalformed
	default:
		return nil
	}
}

// name reads the name of the next member of a JSON object.
func (s *stream) name() (string, error) {
	token, err := s.Token()
	name, ok := token.(string)
	if err == nil && !ok {
		err = errMalformed
	}
	return name, err
}

// ListHead is a list without its objects.
type ListHead struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
}

// ReadList reads a list in JSON, and calls each for each object, which must decode it.
// Objects have at most 3 MiB, the rest of the list 64 KiB.
func ReadList(body io.Reader, each func(decode func(into any) error) error) (ListHead, error) {
	s := newStream(body)
	var head ListHead
	s.from.part("list", maxListHead)
	if err := s.expect('{'); err != nil {
		return head, err
	}
	for s.More() {
		s.from.part("part of a list", maxListHead)
		name, err := s.name()
		s.from.part("part of a list", maxListHead)
		switch {
		case err != nil:
		case name == "items":
			err = s.items(each)
		case name == "metadata":
			err = s.decode(&head.ListMeta)
		case name == "kind":
			err = s.decode(&head.Kind)
		case name == "apiVersion":
			err = s.decode(&head.APIVersion)
		default:
			var other json.RawMessage
			err = s.decode(&other)
		}
		if err != nil {
			return head, err
		}
	}
	return head, s.expect('}')
}

func (s *stream) items(each func(decode func(any) error) error) error {
	s.from.part("object", maxObject)
	start, err := s.Token()
	switch {
	case err != nil:
		return err
	case start == nil: // null
		return nil
	case start != json.Delim('['):
		return errMalformed
	}
	for s.More() {
		s.from.part("object", maxObject)
		if err := each(s.decode); err != nil {
			return err
		}
		s.from.part("object", maxObject)
	}
	return s.expect(']')
}

// events implements watch.Decoder.
type events struct {
	*stream
	form
	body    io.Closer
	dropped func()
}

// Close implements watch.Decoder.
func (e *events) Close() { _ = e.body.Close() }

// Decode implements watch.Decoder. It skips objects that can't be decoded.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	for {
		e.from.part("object", maxObject)
		kind, object, err := e.next()
		switch {
		case err != nil:
			return "", nil, err
		case object == nil:
			e.dropped()
		case (kind == watch.Added || kind == watch.Modified) && !e.enough(object):
			return "", nil, io.EOF // The next watch continues before this event.
		default:
			return kind, object, nil
		}
	}
}

// next reads one event; its object is nil if it can't be decoded.
func (e *events) next() (kind watch.EventType, object runtime.Object, err error) {
	if err := e.expect('{'); err != nil {
		return "", nil, err
	}
	for e.More() {
		name, err := e.name()
		switch {
		case err != nil:
		case name == "type":
			err = e.stream.decode(&kind)
		case name == "object" && kind == watch.Error:
			e.from.part("error", maxErrorBody)
			status := &metav1.Status{}
			err = e.stream.decode(status)
			object = status
		case name == "object":
			if object, err = e.form.decode(e.stream.decode); errors.Is(err, errWrongType) {
				err = nil
			}
		default:
			err = errMalformed
		}
		if err != nil {
			return "", nil, notEOF(err)
		}
	}
	if _, failed := object.(*metav1.Status); kind == "" || kind == watch.Error && !failed {
		return "", nil, errMalformed
	}
	return kind, object, notEOF(e.expect('}'))
}

// notEOF is for positions where the response must not end.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
