package mcs

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Labels of EndpointSlices of imports.
const (
	LabelServiceName   = v1beta1.LabelServiceName
	LabelSourceCluster = v1beta1.LabelSourceCluster
)

const (
	// Prefix is that of our labels and annotations.
	Prefix = "mirror.semaphore.uw.io/"
	// LabelImported marks objects that we made for an import. Its value is "true".
	LabelImported = Prefix + "imported"
	// AnnotImport is the name of the import that a derived Service is for.
	AnnotImport = Prefix + "import"
	// AnnotDerived has the name of the derived Service of an import. Implementations of the Gateway
	// API find it there: the annotation is that of the API's reference implementation.
	AnnotDerived = "multicluster.kubernetes.io/derived-service"
	// AnnotExports has the places of the exports that an import was computed from.
	AnnotExports = Prefix + "exports"
)

// derivedPrefix and derivedLength are those of the names of derived Services.
const (
	derivedPrefix = "derived-"
	derivedLength = 10
)

// DerivedName returns the name of the Service that has the addresses of an import.
func DerivedName(namespace, name string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	return derivedPrefix + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:derivedLength]
}

// IsDerivedName reports whether a Service may be a derived one, of any implementation of the
// API. Such Services are not exported.
func IsDerivedName(name string) bool {
	rest, ok := strings.CutPrefix(name, derivedPrefix)
	return ok && len(rest) == derivedLength && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuv") == ""
}
