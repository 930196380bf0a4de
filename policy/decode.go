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

// setSerializer decodes network sets like the embedded serializer, but faster: that one
// parses each object twice, for its kind first, and again when a watch shows the response to
// a write, which dominates the time per object. Returned objects may be shared and must not
// be modified.
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

// setDecoder decodes network sets, and everything else with the embedded decoder.
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
	to.TypeMeta = metav1.TypeMeta{} // as in the embedded decoder
	return to, &kind, nil
}

// recentSets caches recently decoded network sets. The response to a write and the watch
// event, in either order, have the same bytes, which include the resource version.
type recentSets struct {
	seed maphash.Seed

	mu    sync.Mutex
	bySum map[uint64]*calico.GlobalNetworkSet
	sums  [64]uint64 // ring buffer
	next  int        // index of the oldest one
}

// take returns the decoded set of some bytes, or nil, and removes it: each is needed once.
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
