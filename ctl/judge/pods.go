package judge

import (
	"fmt"
	"iter"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// podConnections returns the connections that temporary pods have tested.
func (f *Facts) podConnections() []probe.Connection {
	if f.Results == nil {
		return nil
	}
	return f.Results.Connections
}

func legScope(l *probe.Connection) Scope {
	return Scope{l.From.Cluster, l.From.Node, l.To.Cluster, l.To.Node}
}

func tryAgain(l *probe.Connection) string {
	return fmt.Sprintf("semaphorectl verify %s %s", l.From.Cluster, l.To.Cluster)
}

// up reports whether the paths between two nodes are up in both directions: a fault is then
// between a pod and its node's tunnel.
func (f *Facts) up(s Scope) bool {
	there, back := f.pair(s), f.pair(s.turned())
	return there != nil && back != nil && there.state() == "up" && back.state() == "up"
}

// What the connections of temporary pods show. Where the paths of their nodes are up:
//
//	response, real source address       not-translated
//	response, other source address      pods-masqueraded
//	response, larger packets lost       pods-mtu
//	no response                         pods-dropped
//
// Where a path is down, the path is the cause.
func (f *Facts) tried() iter.Seq[*probe.Connection] {
	return func(yield func(*probe.Connection) bool) {
		for i := range f.podConnections() {
			if l := &f.podConnections()[i]; l.Skipped == "" && !yield(l) {
				return
			}
		}
	}
}

// mutual is the scope of a missing response, which needs both directions: they are one cause.
func mutual(l *probe.Connection) Scope {
	if scope := legScope(l); scope.Cluster <= scope.Remote {
		return scope
	}
	return legScope(l).turned()
}

func masqueraded(f *Facts, found func(Finding)) {
	for l := range f.tried() {
		subnets, own := f.subnetsOf(l.From.Cluster), "own"
		if l.Seen == "" || subnets.real(l.Seen) {
			continue
		}
		if len(subnets.SubnetMap) > 0 {
			own = "virtual"
		}
		found(Finding{Scope: legScope(l), Evidence: says(fmt.Sprintf("a pod on %s received them from %s instead of the pod's %s address", l.To.Node, l.Seen, own), tryAgain(l))})
	}
}

func podsMTU(f *Facts, found func(Finding)) {
	for l := range f.tried() {
		if l.Carries < l.MTU {
			found(Finding{Scope: legScope(l), Evidence: says(fmt.Sprintf("packets of %d bytes, the kernel's path MTU, are lost; packets of %d bytes get through", l.MTU, l.Carries), tryAgain(l))})
		}
	}
}

func dropped(f *Facts, found func(Finding)) {
	for l := range f.tried() {
		if err := strings.TrimSpace(l.Error + l.Datagrams); err != "" && f.up(legScope(l)) {
			where, counted := f.end(l)
			found(Finding{Scope: mutual(l), Evidence: says(l.Address+": "+err+counted, tryAgain(l)), With: []string{"{from}", l.From.Node, "{to}", l.To.Node, "{where}", where}})
		}
	}
}

func podsUnreached(f *Facts, found func(Finding)) {
	for l := range f.tried() {
		err := l.Error
		if err == "" && !f.up(legScope(l)) {
			err = l.Datagrams // Else it is dropped's.
		}
		if err != "" {
			found(Finding{Scope: mutual(l), Evidence: says(l.Address+": "+strings.TrimSpace(err), tryAgain(l)), With: []string{"{from}", l.From.Node, "{to}", l.To.Node}})
		}
	}
}
