// Package pathreport defines how agents report broken paths from their nodes to nodes of other
// clusters. The service mirror reads the reports to choose endpoints.
//
// A report is a Lease in the agents' namespace, with the node's name, that exists only
// while a path is down. Leases have no configuration, so that the permission to write them
// is harmless, and have the fields that a report needs: its holder and its last renewal.
package pathreport

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
	// Renewal is the interval at which an agent renews its report while a path is down.
	Renewal = 30 * time.Second
	// Expiry is the time after which a report without renewal is ignored, by the reader's
	// clock, since the reader saw the report change.
	Expiry = 90 * time.Second
	// MaxSize is the maximum size of a report's content in bytes, half of the maximum of
	// all annotations of an object (API reference of ObjectMeta).
	MaxSize = 128 << 10
	// maxRemotes is the maximum number of remotes in a report.
	maxRemotes = 1000
)

// Report has the remote nodes that are down for one node.
type Report struct {
	// Node is the reporting node.
	Node string
	// Remotes are those with a node that is down, by name.
	Remotes map[string]Down
}

// Down is the set of nodes of one remote that are down.
type Down struct {
	// AllBut: all nodes are down except Nodes.
	AllBut bool
	// Nodes are sorted.
	Nodes []string
	// Omitted is the number of further nodes that are down, for which there is no space.
	Omitted int
}

// Has reports whether a node is down.
func (d *Down) Has(node string) bool {
	_, found := slices.BinarySearch(d.Nodes, node)
	return found != d.AllBut
}

// Equal reports whether two reports are equal.
func (r *Report) Equal(o *Report) bool {
	return r.Node == o.Node && maps.EqualFunc(r.Remotes, o.Remotes, func(a, b Down) bool {
		return a.AllBut == b.AllBut && a.Omitted == b.Omitted && slices.Equal(a.Nodes, b.Nodes)
	})
}

// NewDown returns the shorter form of which nodes of a remote are down, of at most size
// bytes. Both lists of names are sorted.
//
//	| more than half are down, and the others fit | all but the others |
//	| else                                        | those that are down, as many as fit |
//
// A node that is omitted counts as up.
func NewDown(down, others []string, size int) Down {
	if len(down) > len(others) && fits(others, size) == len(others) {
		return Down{AllBut: true, Nodes: others}
	}
	return Listed(down, size)
}

// Listed returns the set of the nodes that are down, by their names, of at most size bytes.
func Listed(down []string, size int) Down {
	n := fits(down, size)
	return Down{Nodes: down[:n], Omitted: len(down) - n}
}

// fits returns how many of names fit into size bytes of JSON.
func fits(names []string, size int) int {
	for i, name := range names {
		if size -= len(name) + len(`"",`); size < 0 {
			return i
		}
	}
	return len(names)
}

// content is the JSON of one remote. Readers ignore unknown fields, for later versions.
type content struct {
	Down    []string  `json:"down,omitempty"`
	AllBut  *[]string `json:"allBut,omitempty"`
	Omitted int       `json:"omitted,omitempty"`
}

// encode returns the content of a report.
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
	data, _ := json.Marshal(all) // never fails for these types
	return string(data)
}

// decode parses and validates the content of a report, which any writer may have changed. It
// drops invalid remotes.
func decode(text string) (map[string]Down, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%d bytes, more than the maximum of %d", len(text), MaxSize)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("not the content of a report: %w", err)
	}
	if len(all) > maxRemotes {
		return nil, fmt.Errorf("%d remotes, more than the maximum of %d", len(all), maxRemotes)
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
		return Down{}, errors.New("both down and allBut are set")
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
