// Package cluster defines the names of clusters. All programs parse them with ParseName:
// a name becomes part of paths, object names, variables and DNS zones.
package cluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxName is the maximum length of a name and of a service prefix. The mirror of a
// service is called <prefix>-<namespace>-73736d-<service>, a DNS label of at most 63
// characters: with a longer prefix no such name can exist.
const MaxName = 52

// GlobalPrefix is the prefix of global services, which no remote may have.
const GlobalPrefix = "gl"

// Name is the name of a cluster, the same in the configuration of all clusters of the
// mesh. ParseName returns DNS labels (RFC 1123) of at most MaxName characters that are
// not reserved.
type Name string

// reserved are labels that have another meaning in DNS zones and object names.
var reserved = map[string]string{
	"local":      "the zone cluster.local is that of a cluster's own services",
	"global":     "the zone cluster.global is that of global services",
	GlobalPrefix: "the names of global services begin with it",
}

// ParseName returns text as a name. The error says what a valid name is.
func ParseName(text string) (Name, error) {
	if len(validation.IsDNS1123Label(text)) > 0 {
		return "", fmt.Errorf("%s is not a valid cluster name: it must consist of lower-case letters, digits and dashes, and begin and end with a letter or digit", quote(text))
	}
	if len(text) > MaxName {
		return "", fmt.Errorf("%q is not a valid cluster name: it has %d characters, and names of services leave room for %d", text, len(text), MaxName)
	}
	if why, is := reserved[text]; is {
		return "", fmt.Errorf("%q can't be the name of a cluster: %s", text, why)
	}
	return Name(text), nil
}

// ParsePrefix returns text as a prefix of the names of mirrored services. Names of
// Services are labels of RFC 1035, which begin with a letter.
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

// Zone is the DNS zone under which other clusters resolve the services of the cluster.
func (n Name) Zone() string { return "cluster." + string(n) }

// Variables is the common prefix of the environment variables of a remote.
func (n Name) Variables() string {
	return "SEMAPHORE_REMOTE_" + strings.ToUpper(strings.ReplaceAll(string(n), "-", "_"))
}

// quote returns at most the first 80 bytes of text in quotes.
func quote(text string) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q and more", text[:most])
	}
	return fmt.Sprintf("%q", text)
}
