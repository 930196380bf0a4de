package mirror

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// separator stands between namespace and name, for DNS rewrites to find.
	separator = "73736d"
	// globalPrefix stands where the names of mirrors have their remote's.
	globalPrefix = "gl"
	// maxName is what the name of a Service, a label of RFC 1035, may have.
	maxName = 63
	// keptName is how much of a name stays before the hash that shortens it.
	keptName = 52
	// hashLength is how much of a hash, in hexadecimal, makes names differ.
	hashLength = 10
)

// Key names a Service in its cluster.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// ID says where a local service comes from. A global one has no cluster.
type ID struct {
	Cluster string
	Key
}

// Global reports whether the service is merged from several clusters.
func (id ID) Global() bool { return id.Cluster == "" }

// String returns cluster/namespace/name, or global/namespace/name.
func (id ID) String() string {
	return cmp.Or(id.Cluster, "global") + "/" + id.Key.String()
}

// Name returns the name of the mirror of a service of a remote cluster
// with a prefix.
func Name(prefix string, origin Key) string {
	return shortened(fullName(prefix, origin), "")
}

// GlobalName returns the name of the global service of a namespace and name.
func GlobalName(origin Key) string {
	return shortened(fullName(globalPrefix, origin), "")
}

func fullName(prefix string, origin Key) string {
	return prefix + "-" + origin.Namespace + "-" + separator + "-" + origin.Name
}

// shortened returns a name that fits: the full one, or its beginning and a
// hash. A salt forces the hash, and another one than the name alone has.
func shortened(full, salt string) string {
	if len(full) <= maxName && salt == "" {
		return full
	}
	return full[:min(keptName, len(full))] + "-" + hash(full+salt)
}

// hash returns the first hex digits of the SHA-256 of a text.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:hashLength]
}

// sliceName returns the name of the local copy of an EndpointSlice. The type of
// its addresses can't be changed, so that it is part of what is copied.
func sliceName(target, cluster string, s *Slice) string {
	return target + "-" + hash(strings.Join([]string{cluster, s.Service.Namespace, s.Name, string(s.Family)}, "/"))
}

// claim is the wish of one origin for a name.
type claim struct {
	id     ID
	prefix string
	svc    *Service // nil for a global service
}

func (c claim) full() string { return fullName(c.prefix, c.id.Key) }

// compareClaims orders origins that would have one name: the first gets it.
// Cluster "c1" with namespace "x-y" and cluster "c1-x" with namespace "y" are
// such. A global service goes first, then the longer prefix, because neither
// is in the hands of a remote cluster; inside one cluster, age decides.
func compareClaims(a, b claim) int {
	if c := cmp.Compare(a.id.Cluster, b.id.Cluster); c != 0 {
		return cmp.Or(
			-boolCompare(a.id.Global(), b.id.Global()),
			-cmp.Compare(len(a.prefix), len(b.prefix)),
			c,
		)
	}
	age := 0
	if a.svc != nil && b.svc != nil {
		age = a.svc.Created.Compare(b.svc.Created)
	}
	return cmp.Or(age, cmp.Compare(a.id.Namespace, b.id.Namespace), cmp.Compare(a.id.Name, b.id.Name))
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

// nameOf returns the name of the claim at a rank among those for its name.
func (c claim) nameOf(rank int) string {
	if rank == 0 {
		return shortened(c.full(), "")
	}
	return shortened(c.full(), "\x00"+c.id.String())
}
