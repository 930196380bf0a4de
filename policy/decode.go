package policy

import (
	"bytes"
	"hash/maphash"
	"sync"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// setSerializer decodes network sets as the other does, and less often: that one reads
// each through for its kind first, and again when a watch shows what a write was answered
// with, which together takes longer than all else that is done with it. What it returns
// may be shared and must not be changed.
type setSerializer struct {
	runtime.NegotiatedSerializer
	recent *recentSets
}

func newSetSerializer(of runtime.NegotiatedSerializer) setSerializer {
	return setSerializer{of, &recentSets{seed: maphash.MakeSeed(), bySum: map[uint64]*calico.GlobalNetworkSet{}}}
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s setSerializer) DecoderToVersion(decoder runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return setDecoder{s.NegotiatedSerializer.DecoderToVersion(decoder, gv), s.recent}
}

// setDecoder leaves all that isn't a network set to another decoder.
type setDecoder struct {
	runtime.Decoder
	recent *recentSets
}

// Decode implements runtime.Decoder.
func (d setDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	to, ok := into.(*calico.GlobalNetworkSet)
	if into != nil && !ok {
		return d.Decoder.Decode(data, defaults, into)
	}
	set, sum := d.recent.take(data)
	if set == nil {
		set = &calico.GlobalNetworkSet{}
		if json.Unmarshal(data, set) != nil || set.Kind != calico.KindGlobalNetworkSet {
			return d.Decoder.Decode(data, defaults, into)
		}
		d.recent.put(sum, set)
	}
	if to == nil {
		to = &calico.GlobalNetworkSet{}
	}
	*to = *set
	kind := to.GroupVersionKind()
	to.TypeMeta = metav1.TypeMeta{} // as the other does
	return to, &kind, nil
}

// recentSets are network sets that were decoded once of late. An API server answers a
// write with the same bytes that it has watches show, in either order; they hold the
// version of the object.
type recentSets struct {
	seed maphash.Seed

	mu    sync.Mutex
	bySum map[uint64]*calico.GlobalNetworkSet
	sums  [64]uint64 // as they came
	next  int        // where in there the oldest one is
}

// take returns the set that some bytes stand for, and forgets it: it comes no third time.
// Nil: it isn't known.
func (r *recentSets) take(data []byte) (*calico.GlobalNetworkSet, uint64) {
	sum := maphash.Bytes(r.seed, bytes.TrimSpace(data))
	r.mu.Lock()
	defer r.mu.Unlock()
	set := r.bySum[sum]
	delete(r.bySum, sum)
	return set, sum
}

func (r *recentSets) put(sum uint64, set *calico.GlobalNetworkSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.bySum, r.sums[r.next])
	r.bySum[sum], r.sums[r.next] = set, sum
	r.next = (r.next + 1) % len(r.sums)
}
