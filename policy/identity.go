package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Identity identifies a set: the pods of a cluster and namespace whose label has the value
// Name. It is in the labels of the set's objects.
type Identity struct{ Cluster, Namespace, Name string }

// String returns cluster/namespace/name.
func (id Identity) String() string { return id.Cluster + "/" + id.Namespace + "/" + id.Name }

func (id Identity) compare(other Identity) int {
	return cmp.Or(
		cmp.Compare(id.Cluster, other.Cluster),
		cmp.Compare(id.Namespace, other.Namespace),
		cmp.Compare(id.Name, other.Name),
	)
}

// maxCandidates is the number of possible names of an object.
const maxCandidates = 8

// Lengths of an object's name (RFC 1123) and of the hash in it.
const (
	maxNameLen = validation.DNS1123SubdomainMaxLength
	hashLen    = 10
)

// Natural returns the preferred name of an object, which may be invalid or taken:
// <cluster>-<namespace>-<name> for the first shard of a set, with -2 for the second, and so
// on.
func (id Identity) Natural(shard int) string {
	natural := id.Cluster + "-" + id.Namespace + "-" + id.Name
	if shard > 1 {
		natural += "-" + strconv.Itoa(shard)
	}
	return natural
}

// isNatural reports whether the name is the natural one of any shard.
func (id Identity) isNatural(name string) bool {
	rest, ours := strings.CutPrefix(name, id.Natural(1))
	if !ours || rest == "" {
		return ours
	}
	shard, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
	return err == nil && name == id.Natural(shard)
}

// hashed matches names that end like one with a hash.
var hashed = regexp.MustCompile(fmt.Sprintf("-[0-9a-f]{%d}$", hashLen))

// candidate returns the possible names of an object, in order of preference. All except the
// natural one end with a hash of identity, shard and try. A natural one that ends like these isn't
// among them: pods of another namespace could be labelled so that their sets take all names of this one.
func (id Identity) candidate(shard, try int) string {
	natural := id.Natural(shard)
	if try == 0 && len(validation.IsDNS1123Subdomain(natural)) == 0 && !hashed.MatchString(natural) {
		return natural
	}
	// The parts don't contain the separator, so that different ones have different texts.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d/%d", id.Cluster, id.Namespace, id.Name, shard, try))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(natural))
	readable = readable[:min(len(readable), maxNameLen-hashLen-1)]
	return readable + "-" + hex.EncodeToString(sum[:])[:hashLen]
}

// shardOf returns the shard of a name, among the first shards; 0: none.
func (id Identity) shardOf(name string, shards int) int {
	for shard := 1; shard <= shards; shard++ {
		if name == id.Natural(shard) {
			return shard
		}
	}
	for shard := 1; shard <= shards; shard++ {
		for try := range maxCandidates {
			if name == id.candidate(shard, try) {
				return shard
			}
		}
	}
	return 0
}
