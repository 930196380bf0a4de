// Package paths is what an agent reports of the paths from its node to the nodes of
// other clusters, and in which form: agents write it, whoever chooses endpoints reads
// it.
//
// A report is a Lease that is there only while something is down, of the node's name,
// in the agents' namespace. Leases hold no configuration, so that the right to write
// them gives none over that, and they have fields for what a report needs beside its
// content: who it is of, and when it was last renewed.
package paths

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

const (
	// Renewal is how often an agent renews its report while something is down.
	Renewal = 30 * time.Second
	// Expiry is how long a report counts that nobody renews. The reader measures it
	// by its own clock, from when it saw the report change.
	Expiry = 90 * time.Second
	// MaxSize bounds the content of a report, in bytes. It is half of what all
	// annotations of an object may have (API reference of ObjectMeta).
	MaxSize = 128 << 10
	// maxRemotes bounds how many remotes a report may be about.
	maxRemotes = 1000
)

// Report is what one node sees as down.
type Report struct {
	// Node is the node that sees it.
	Node string
	// Remotes are those with a node that is down, by name.
	Remotes map[string]Down
}

// Down says which nodes of one remote are down.
type Down struct {
	// AllBut says that all nodes are down but those of Nodes.
	AllBut bool
	// Nodes are sorted.
	Nodes []string
	// Omitted is how many more are down than there was room for.
	Omitted int
}

// Has reports whether a node is down.
func (d *Down) Has(node string) bool {
	_, found := slices.BinarySearch(d.Nodes, node)
	return found != d.AllBut
}

// Equal reports whether two reports say the same.
func (r *Report) Equal(o *Report) bool {
	return r.Node == o.Node && maps.EqualFunc(r.Remotes, o.Remotes, func(a, b Down) bool {
		return a.AllBut == b.AllBut && a.Omitted == b.Omitted && slices.Equal(a.Nodes, b.Nodes)
	})
}

// NewDown says, in as few names as it takes, which nodes of a remote are down and
// which aren't; both are sorted. It has room for so many bytes:
//
//	| more than half are down, and the others fit | all but the others |
//	| else                                        | those that are down, as many as fit |
//
// One that there is no room for is as if it were up.
func NewDown(down, others []string, room int) Down {
	if len(down) > len(others) && fits(others, room) == len(others) {
		return Down{AllBut: true, Nodes: others}
	}
	return Listed(down, room)
}

// Listed says which nodes of a remote are down, by their names, whatever others there
// may be.
func Listed(down []string, room int) Down {
	n := fits(down, room)
	return Down{Nodes: down[:n], Omitted: len(down) - n}
}

// fits returns how many of names there is room for.
func fits(names []string, room int) int {
	for i, name := range names {
		if room -= len(name) + len(`"",`); room < 0 {
			return i
		}
	}
	return len(names)
}

// content is what a report says of one remote, as it is written. Fields that a reader
// doesn't know are for later versions: it ignores them.
type content struct {
	Down    []string  `json:"down,omitempty"`
	AllBut  *[]string `json:"allBut,omitempty"`
	Omitted int       `json:"omitted,omitempty"`
}

// encode returns what a report says of remotes.
func encode(remotes map[string]Down) string {
	all := make(map[string]content, len(remotes))
	for remote, d := range remotes {
		c := content{Omitted: d.Omitted}
		if d.AllBut {
			names := append([]string{}, d.Nodes...)
			c.AllBut = &names
		} else {
			c.Down = d.Nodes
		}
		all[remote] = c
	}
	// Of these types, none can't be encoded.
	data, _ := json.Marshal(all)
	return string(data)
}

// decode reads what encode returned, or what somebody else wrote in its place. What
// is wrong about one remote is left out alone.
func decode(text string) (map[string]Down, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%d bytes, of which there may be %d", len(text), MaxSize)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("not what a report says: %w", err)
	}
	if len(all) > maxRemotes {
		return nil, fmt.Errorf("about %d remotes, of which there may be %d", len(all), maxRemotes)
	}
	remotes, errs := map[string]Down{}, []error(nil)
	for _, remote := range slices.Sorted(maps.Keys(all)) {
		d, err := decodeRemote(all[remote])
		if err == nil {
			_, err = cluster.ParseName(remote)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remote %.80q: %w", remote, err))
			continue
		}
		remotes[remote] = d
	}
	return remotes, errors.Join(errs...)
}

func decodeRemote(data json.RawMessage) (Down, error) {
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return Down{}, err
	}
	d := Down{Nodes: c.Down, Omitted: max(0, c.Omitted)}
	switch {
	case c.AllBut != nil && len(c.Down) > 0:
		return Down{}, errors.New("both nodes that are down and all but some")
	case c.AllBut != nil:
		d.AllBut, d.Nodes = true, *c.AllBut
	}
	for _, node := range d.Nodes {
		if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
			return Down{}, fmt.Errorf("node %.80q: %s", node, strings.Join(problems, ", "))
		}
	}
	slices.Sort(d.Nodes)
	d.Nodes = slices.Compact(d.Nodes)
	return d, nil
}
