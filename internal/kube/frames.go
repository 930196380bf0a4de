package kube

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
)

// frames is the body of a watch. It reads each event whole, up to maxObject bytes, before
// passing it on, and drops events whose objects exceed maxDecoded.
type frames struct {
	body     io.ReadCloser
	from     *allowance
	protobuf bool
	asked    *request // nil: unknown
	json     *json.Decoder
	event    []byte // buffer
	rest     []byte // unread part of the event
	err      error
}

func newFrames(body io.ReadCloser, protobuf bool, asked *request) *frames {
	from := &allowance{from: body, whole: -1, left: maxObject}
	return &frames{body: body, from: from, protobuf: protobuf, asked: asked, json: json.NewDecoder(from)}
}

// Close implements io.Closer.
func (f *frames) Close() error { return f.body.Close() }

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	for len(f.rest) == 0 && f.err == nil {
		f.from.part(maxObject)
		if f.protobuf {
			f.err = f.nextProtobuf()
		} else {
			f.err = f.nextJSON()
		}
	}
	if len(f.rest) == 0 {
		return 0, f.err
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// nextProtobuf reads an event, after its length in four bytes.
func (f *frames) nextProtobuf() error {
	const prefix = 4
	f.event = append(f.event[:0], make([]byte, prefix)...)
	if _, err := io.ReadFull(f.from, f.event); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(f.event))
	if size > maxObject-prefix {
		return &tooLongError{"event", maxObject}
	}
	if cap(f.event) < prefix+size {
		f.event = append(make([]byte, 0, prefix+size), f.event...)
	}
	f.event = f.event[:prefix+size]
	if _, err := io.ReadFull(f.from, f.event[prefix:]); err != nil {
		return notEOF(err)
	}
	if f.asked == nil || f.passes(f.asked.checkEvent(f.event[prefix:])) {
		f.rest = f.event
	}
	return nil
}

func (f *frames) nextJSON() error {
	raw := json.RawMessage(f.event[:0])
	if err := f.json.Decode(&raw); err != nil {
		return err
	}
	f.event = raw
	f.event = append(f.event, '\n')
	if f.passes(checkJSON(raw)) {
		f.rest = f.event
	}
	return nil
}

func (f *frames) passes(err error) bool {
	if err != nil && f.asked != nil {
		f.asked.dropped()
	}
	return err == nil
}

// checkEvent validates an event in protobuf. client-go decodes its object by the kind that
// it declares: that must be the requested one, or Status.
func (r *request) checkEvent(event []byte) error {
	var object, extension, unknown parts
	if err := object.parse(event); err != nil {
		return err
	}
	if err := extension.parse(object.only(watchEventObject)); err != nil {
		return err
	}
	raw := extension.only(rawExtensionRaw)
	if len(raw) < len(protobufMagic) || string(raw[:len(protobufMagic)]) != protobufMagic {
		return errMalformed
	}
	if err := unknown.parse(raw[len(protobufMagic):]); err != nil {
		return err
	}
	var kind parts
	if err := kind.parse(unknown.only(unknownTypeMeta)); err != nil {
		return err
	}
	switch string(kind.only(typeMetaKind)) {
	case r.object.Name():
		return checkProtobuf(unknown.only(unknownRaw), r.shape)
	case "Status":
		return checkProtobuf(unknown.only(unknownRaw), statusShape())
	default:
		return errors.New("object of another kind")
	}
}

// parts are the length-delimited fields of a message by number. A repeated number makes
// the message invalid.
type parts map[uint64][]byte

func (p *parts) parse(message []byte) error {
	*p = parts{}
	return eachField(message, func(number uint64, content []byte) error {
		if _, twice := (*p)[number]; twice {
			return errMalformed
		}
		(*p)[number] = content
		return nil
	})
}

func (p *parts) only(number uint64) []byte { return (*p)[number] }
