package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Without is what the other clusters lose while one doesn't serve.
type Without struct {
	Cluster string `json:"cluster"`
	Lost    []Lost `json:"lost"`
	// Unknown are clusters that couldn't be read.
	Unknown []string `json:"unknown,omitempty"`

	at map[[3]string]int // the indexes in Lost by service, port and family
}

// Lost is a port of a service, in one family, that has ready endpoints only in the cluster.
type Lost struct {
	Service  string   `json:"service"`
	Port     string   `json:"port"`
	Family   string   `json:"family"`
	Clusters []string `json:"clusters"` // that have the service
}

// without reads what other clusters would lose without one.
func without(ctx context.Context, clusters []*cli.Cluster, name cluster.Name) (*Without, error) {
	reads, surveys := make([][]inspect.ServicePort, len(clusters)), inspect.Collect(ctx, clusters, inspect.Programs)
	errs := make([]error, len(clusters))
	known := make([]bool, len(clusters))
	var reading sync.WaitGroup
	for i, c := range clusters {
		if known[i] = c.Name == string(name); known[i] {
			continue
		}
		reading.Go(func() {
			if errs[i] = surveys[i].Unread(); errs[i] == nil {
				known[i] = slices.Contains(surveys[i].Settings.Value.Remotes(), name)
				reads[i], errs[i] = inspect.ReadServicePorts(ctx, c)
			}
		})
	}
	reading.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if errors.Join(errs...) == nil && !slices.Contains(known, true) {
		return nil, cli.Usage(fmt.Errorf("--without %s: it isn't among the arguments, and none of them has a remote of this name", name))
	}
	w := &Without{Cluster: string(name), Lost: []Lost{}, at: map[[3]string]int{}}
	for i, c := range clusters {
		if errs[i] != nil {
			w.Unknown = append(w.Unknown, printable.Text(c.Name+": "+errs[i].Error(), 2*printable.Short))
		}
		w.add(c.Name, reads[i])
	}
	slices.SortFunc(w.Lost, func(a, b Lost) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Family, b.Family))
	})
	return w, nil
}

// add adds the ports that a cluster would lose.
func (w *Without) add(in string, ports []inspect.ServicePort) {
	for i := range ports {
		p := &ports[i]
		left := 0
		for from, ready := range p.Ready {
			if string(from) != w.Cluster {
				left += ready
			}
		}
		if left > 0 || p.Ready[cluster.Name(w.Cluster)] == 0 {
			continue
		}
		key := [3]string{p.Service, p.Port, p.Family}
		at, known := w.at[key]
		if !known {
			at = len(w.Lost)
			w.at[key], w.Lost = at, append(w.Lost, Lost{Service: p.Service, Port: p.Port, Family: p.Family})
		}
		w.Lost[at].Clusters = append(w.Lost[at].Clusters, in)
	}
}

// Text returns it for people.
func (w *Without) Text() string {
	var b strings.Builder
	if len(w.Lost) == 0 && len(w.Unknown) == 0 {
		return "Without " + w.Cluster + " all services keep ready endpoints.\n"
	}
	if len(w.Lost) > 0 {
		b.WriteString("Without " + w.Cluster + " these have no ready endpoint left:\n")
		rows := [][]string{{"SERVICE", "PORT", "FAMILY", "CLUSTERS THAT HAVE IT"}}
		for i := range w.Lost {
			l := &w.Lost[i]
			rows = append(rows, []string{l.Service, l.Port, l.Family, strings.Join(l.Clusters, ", ")})
		}
		table(&b, rows)
	}
	list(&b, "Unknown", w.Unknown)
	return b.String()
}

// showWithout prints what other clusters would lose.
func showWithout(ctx context.Context, session *cli.Session, clusters []*cli.Cluster, name cluster.Name, output string) error {
	w, err := without(ctx, clusters, name)
	if err != nil {
		return err
	}
	if output == "json" {
		err = cli.JSON(session.Out, w)
	} else {
		_, err = io.WriteString(session.Out, w.Text())
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return cli.Judged(len(w.Lost) > 0, len(w.Unknown) > 0)
}
