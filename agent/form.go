package agent

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

const (
	// wholeFor is for how long a remote's nodes are read whole after that was last needed. Each
	// change of the form is a list by each agent.
	wholeFor = time.Hour
	// listsPerSecond is the rate to which the lists of all nodes of this cluster are spread
	// after a restart of the API server that they read.
	listsPerSecond = 50
)

// form decides when a remote's nodes are listed in the other form: as metadata only, or whole.
//
//	form      state                                   then
//	metadata  some don't publish their prefixes       kube.NodeReader reads them whole
//	metadata  what was allocated decides: Undecided   list them whole
//	whole     needed within wholeFor                  stay
//	whole     not needed for wholeFor                 list their metadata
//
// The zero value is ready to use.
type form struct {
	needed time.Time // when whole nodes were last needed; zero: not read yet
	list   time.Time // when to list in the other form; zero: never
	listed bool      // at that time
}

// next returns whether to list now in the other form, or for lack of what was allocated to some
// nodes in the same one. Lists are delayed by a random part of spread.
func (f *form) next(now time.Time, state *peers.State, whole bool, spread time.Duration) bool {
	if state.Source != peers.SourceAPI {
		return false
	}
	if state.Specs || f.needed.IsZero() {
		f.needed = now
	}
	if !state.Undecided && (!whole || now.Sub(f.needed) < wholeFor) {
		f.list, f.listed = time.Time{}, false
		return false
	}
	if f.list.IsZero() {
		f.list = now.Add(time.Duration(rand.Float64() * float64(spread)))
	}
	if f.listed || now.Before(f.list) {
		return false
	}
	f.listed = true
	return true
}

// due returns when next has to be called; zero: whenever the state changes.
func (f *form) due() time.Time {
	if f.listed {
		return time.Time{}
	}
	return f.list
}

// keepNode returns a function that trims what a kube.NodeReader reads.
func keepNode(local string, cfg *config.Remote) func(runtime.Object) (*peers.Node, bool) {
	whole, bare := peers.NodeFor(local, cfg.MaxPrefixes, cfg.PodSubnetsMap), peers.BareNodeFor(local, cfg.MaxPrefixes)
	return func(object runtime.Object) (*peers.Node, bool) {
		switch n := object.(type) {
		case *corev1.Node:
			return whole(n)
		case *metav1.PartialObjectMetadata:
			return bare(n)
		}
		return nil, false
	}
}
