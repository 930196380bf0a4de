package kube

import (
	"encoding/binary"
)

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
)

// wireBytes is a wire type (https://protobuf.dev/programming-guides/encoding).
const wireBytes = 2

func appendField(to []byte, number uint64, content []byte) []byte {
	to = binary.AppendUvarint(to, number<<3|wireBytes)
	to = binary.AppendUvarint(to, uint64(len(content)))
	return append(to, content...)
}

func protobufNode(name string, more []byte) []byte {
	meta := appendField(appendField(nil, 1, []byte(name)), 6, []byte("5"))
	return append(appendField(nil, 1, meta), more...)
}

func protobufUnknown(kind string, raw []byte) []byte {
	types := appendField(appendField(nil, 1, []byte("v1")), 2, []byte(kind))
	unknown := appendField([]byte(protobufMagic), unknownTypeMeta, types)
	return appendField(unknown, unknownRaw, raw)
}

func protobufEvent(kind string, raw []byte) []byte {
	object := appendField(nil, rawExtensionRaw, protobufUnknown(kind, raw))
	event := appendField(appendField(nil, 1, []byte("ADDED")), watchEventObject, object)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

// listStart is the beginning of a list in protobuf that says it has a terabyte.
func listStart() string {
	b := appendField([]byte(protobufMagic), unknownTypeMeta, appendField(appendField(nil, 1, []byte("v1")), 2, []byte("NodeList")))
	b = binary.AppendUvarint(b, unknownRaw<<3|wireBytes)
	b = binary.AppendUvarint(b, 1<<40)
	return string(appendField(b, listMetadata, appendField(nil, 2, []byte("5"))))
}
