package mirror

import (
	"encoding/json"

	"github.com/kube-semaphore/kube-semaphore/internal/pace"
)

// Approximate sizes in bytes of what API servers add to an object: UID, times, versions, addresses
// of a Service; and of the rest of a ServiceExport.
const (
	addedSize  = 200
	exportSize = 1 << 10
)

// turns returns which changes may be made now, as other writes were made for their clusters.
// tenant is the cluster of what isn't a slice. Changes that wait for another reason have no turn.
func (a *applier) turns(tenant string, want *Service, changes []Change, waits func(int) bool, urgent func(int) bool) []bool {
	var writes []pace.Write
	var of []int
	for i := range changes {
		if !waits(i) {
			w := changes[i].paced(tenant, want)
			w.Urgent = urgent(i)
			writes, of = append(writes, w), append(of, i)
		}
	}
	may := make([]bool, len(changes))
	for n, now := range a.pace.Take(want.Name, writes...) {
		may[of[n]] = now
	}
	for i := range changes {
		// What is deleted to be created again isn't missing until then.
		if i+1 < len(changes) && changes[i].isReplacedBy(&changes[i+1]) {
			may[i] = may[i] && may[i+1]
		}
	}
	return may
}

func (c *Change) isReplacedBy(next *Change) bool {
	return c.Verb == verbDelete && next.Verb == verbCreate && c.Object == next.Object && c.Name == next.Name
}

// paced returns a change as it is paced. A deletion isn't.
func (c *Change) paced(tenant string, want *Service) pace.Write {
	w := pace.Write{Cluster: tenant, Namespace: want.Origin.Namespace, Object: c.Object + " " + c.Name}
	switch {
	case c.Verb == verbDelete:
	case c.Slice != nil:
		w.Cluster, w.Namespace, w.Bytes = c.Slice.Cluster, c.Slice.origin.Service.Namespace, c.Slice.size
	case c.Object == aService, c.Object == aDerived:
		w.Bytes = want.object("", "").Size()
	case c.Object == anImport:
		w.Bytes = jsonSize(want.Imported.object(want.Origin.Key))
	case c.Object == importStatus:
		w.Bytes = jsonSize(want.Imported.object(want.Origin.Key)) + jsonSize(want.Imported.Status)
	case c.Object == exportStatus:
		w.Bytes = exportSize + jsonSize(c.conditions)
	}
	if w.Bytes > 0 {
		w.Bytes += addedSize
	}
	return w
}

// jsonSize returns the size of an object that etcd has as JSON, as it does custom resources.
func jsonSize(object any) int {
	text, _ := json.Marshal(object) // it never fails for these types
	return len(text)
}
