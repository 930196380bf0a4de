package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Identity is what a set is about: the pods of a cluster and namespace whose
// label has the value Name. The labels of a set's objects hold it.
type Identity struct{ Cluster, Namespace, Name string }

// String returns the identity for people.
func (id Identity) String() string { return id.Cluster + "/" + id.Namespace + "/" + id.Name }

func (id Identity) compare(other Identity) int {
	return cmp.Or(
		cmp.Compare(id.Cluster, other.Cluster),
		cmp.Compare(id.Namespace, other.Namespace),
		cmp.Compare(id.Name, other.Name),
	)
}

// maxCandidates is how many names an object may try.
const maxCandidates = 8

// Lengths of an object's name (RFC 1123, as Kubernetes has it) and of the hash
// that makes one unique.
const (
	maxNameLen = validation.DNS1123SubdomainMaxLength
	hashLen    = 10
)

// Natural returns the name that an object has unless another one has it or it
// isn't valid as one: <cluster>-<namespace>-<name> for the first shard of a
// set, followed by -2 for the second, and so on.
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

// candidate returns the names that an object may have, the best one for try 0.
// All but the natural one end with a hash of what the object is.
func (id Identity) candidate(shard, try int) string {
	natural := id.Natural(shard)
	if try == 0 && len(validation.IsDNS1123Subdomain(natural)) == 0 {
		return natural
	}
	// The separator can be in none of the parts, so that different ones can't
	// give the same text.
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

// shardOf returns which shard's object of this set has the name, among the
// first shards; 0: none.
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
