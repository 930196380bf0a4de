// Package cluster has the rules for what clusters are called. The programs, semaphorectl
// and whatever else reads a cluster's name take it through ParseName: a name becomes part
// of paths, names of objects, variables and DNS zones.
package cluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxName is the most characters of a name and of a service prefix. The mirror of a
// service is called <prefix>-<namespace>-73736d-<service>, a DNS label of at most 63
// characters: with a longer prefix no such name can exist.
const MaxName = 52

// GlobalPrefix begins the names of global services, and so can be no remote's prefix.
const GlobalPrefix = "gl"

// Name is the name of a cluster, the same in the configuration of all clusters that know
// it. One that ParseName has returned is a DNS label (RFC 1123) of at most MaxName
// characters, and none of the reserved words.
type Name string

// reserved are labels that have another meaning where names of clusters stand.
var reserved = map[string]string{
	"local":      "the zone cluster.local is that of a cluster's own services",
	"global":     "the zone cluster.global is that of global services",
	GlobalPrefix: "the names of global services begin with it",
}

// ParseName returns text as a name. The error says what would be one.
func ParseName(text string) (Name, error) {
	if len(validation.IsDNS1123Label(text)) > 0 {
		return "", fmt.Errorf("%s is no name of a cluster: it must consist of lower-case letters, digits and dashes, and begin and end with a letter or digit", quote(text))
	}
	if len(text) > MaxName {
		return "", fmt.Errorf("%q is no name of a cluster: it has %d characters, and names of services leave room for %d", text, len(text), MaxName)
	}
	if why, is := reserved[text]; is {
		return "", fmt.Errorf("%q can't be the name of a cluster: %s", text, why)
	}
	return Name(text), nil
}

// ParsePrefix returns text as what the names of services mirrored from a remote begin
// with. It begins the name of a Service, so it is a label of RFC 1035, which begins with a
// letter.
func ParsePrefix(text string) (string, error) {
	switch {
	case len(validation.IsDNS1035Label(text)) > 0:
		return "", fmt.Errorf("%s can't begin the names of services: a prefix must consist of lower-case letters, digits and dashes, begin with a letter and end with a letter or digit", quote(text))
	case len(text) > MaxName:
		return "", fmt.Errorf("%q can't begin the names of services: it has %d characters, and their names leave room for %d", text, len(text), MaxName)
	case text == GlobalPrefix:
		return "", fmt.Errorf("%q can't begin the names of services: those of global services do", text)
	}
	return text, nil
}

// Zone is the DNS zone of the services of a cluster, as other clusters ask for them.
func (n Name) Zone() string { return "cluster." + string(n) }

// Variables is what the names of a remote's settings begin with.
func (n Name) Variables() string {
	return "SEMAPHORE_REMOTE_" + strings.ToUpper(strings.ReplaceAll(string(n), "-", "_"))
}

// quote returns the beginning of a text of any length in quotes.
func quote(text string) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q and more", text[:most])
	}
	return fmt.Sprintf("%q", text)
}
