package mirror

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	clustername "github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

const (
	// separator stands between namespace and name, for DNS rewrites to find.
	separator = "73736d"
	// globalPrefix stands where the names of mirrors have their remote's.
	globalPrefix = clustername.GlobalPrefix
	// maxName is the maximum length of a Service's name, a label of RFC 1035.
	maxName = 63
	// keptName is the length of the prefix of a shortened name, before the hash.
	keptName = 52
	// hashLength is the length of the hash of a shortened name, in hexadecimal. Other tools
	// depend on it. It is short enough to find collisions by choosing names, which is why
	// claims are compared.
	hashLength = 10
	// longHash is the length of a hash without feasible collisions: 128 bits.
	longHash = 32
)

// importKey returns the key of an import by its name among local services, namespace/name.
// Other local services are all in one namespace, and their names have none.
func importKey(name string) (k origin.Key, is bool) {
	k.Namespace, k.Name, is = strings.Cut(name, "/")
	return k, is
}

// Name returns the name of the mirror of a service of a remote cluster
// with a prefix.
func Name(prefix string, of origin.Key) string {
	return shortened(fullName(prefix, of))
}

// GlobalName returns the name of the global service of a namespace and name.
func GlobalName(of origin.Key) string {
	return shortened(fullName(globalPrefix, of))
}

func fullName(prefix string, of origin.Key) string {
	return prefix + "-" + of.Namespace + "-" + separator + "-" + of.Name
}

// shortened returns the full name, or if it is too long its beginning and a hash.
func shortened(full string) string {
	if len(full) <= maxName {
		return full
	}
	return full[:keptName] + "-" + hash(full, hashLength)
}

// hash returns the first hex digits of the SHA-256 of a text.
func hash(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// sliceName returns the name of the local copy of an EndpointSlice. It depends on the
// address type, which is immutable. It has a long hash because each cluster chooses the
// names of its slices, and must not be able to collide with those of another one.
func sliceName(service, cluster string, s *origin.Slice) string {
	return service + "-" + hash(strings.Join([]string{cluster, s.Service.Namespace, s.Name, string(s.Family)}, "/"), longHash)
}

// sliceOf returns the service whose slice has a name that sliceName made.
func sliceOf(name string) (service string, ok bool) {
	at := len(name) - len("-") - longHash
	if at <= 0 || name[at] != '-' || strings.Trim(name[at+1:], "0123456789abcdef") != "" {
		return "", false
	}
	return name[:at], true
}

// claim is the claim of one origin to a name.
type claim struct {
	id      origin.ID
	prefix  string
	created time.Time // of the origin of a mirror
	// local is whether a global service is one of the local cluster as well,
	// and holds whether an origin has the name now.
	local, holds bool
}

// short reports whether the claimed name is shortened.
func (c claim) short() bool { return len(fullName(c.prefix, c.id.Key)) > maxName }

// compareClaims orders claims to one name: the first gets it. Examples are cluster "c1" with
// namespace "x-y" and cluster "c1-x" with namespace "y", and a service whose full name is
// the shortened name of another one.
//
//  1. a global service with a service of the local cluster
//  2. the current holder: a new service doesn't replace an existing one
//  3. a global service, then the longer prefix: remotes can't choose these
//  4. of one remote, the older service
//  5. the shortened name, because remotes can't choose that
func compareClaims(a, b claim) int {
	age := 0
	if a.id.Cluster == b.id.Cluster {
		age = a.created.Compare(b.created)
	}
	return cmp.Or(
		-boolCompare(a.local, b.local), -boolCompare(a.holds, b.holds),
		-boolCompare(a.id.Global(), b.id.Global()), -cmp.Compare(len(a.prefix), len(b.prefix)),
		age, -boolCompare(a.short(), b.short()), origin.CompareIDs(a.id, b.id),
	)
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
