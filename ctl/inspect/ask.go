package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxReport bounds a report, in bytes; that of an agent with 10,000 peers has 5 MB.
const maxReport = 32 << 20

// program is one of our programs that report their status.
type program struct {
	name, container string
	port            int // of metrics and status
}

// agents are the programs on the nodes.
var agents = program{WireGuard, "agent", 7773}

// ask reads the reports of all our programs, askers at the same time.
func (t *collector) ask(ctx context.Context) {
	slots := make(chan struct{}, askers)
	var asking sync.WaitGroup
	askAll(ctx, t, &t.Agents, agents, slots, &asking)
	askAll(ctx, t, &t.Mirrors, program{ServiceMirror, "controller", 8080}, slots, &asking)
	askAll(ctx, t, &t.Policies, program{NetworkPolicy, "controller", 8080}, slots, &asking)
	askAll(ctx, t, &t.Relays, program{Relay, "controller", 8080}, slots, &asking)
	asking.Wait()
}

// askAll reads the reports of one program.
func askAll[R any](ctx context.Context, t *collector, all *[]Reported[R], p program, slots chan struct{}, asking *sync.WaitGroup) {
	for _, pod := range t.Pods.Value {
		if pod.Program == p.name {
			*all = append(*all, Reported[R]{Pod: pod})
		}
	}
	for i := range *all {
		asking.Go(func() { reported(ctx, t, &(*all)[i], p, slots) })
	}
}

// hedge is how long the command may take before the page is fetched concurrently.
const hedge = 2 * time.Second

// reported reads the report of a pod's program. It first runs the program's command
// "status": that needs only a kubelet, reaches the process of this pod, and needs no token
// for the program. If it fails or is slow, the page is fetched through the API server, which
// works unless a firewall or NetworkPolicy is in between, or the program requires a token.
func reported[R any](ctx context.Context, t *collector, to *Reported[R], p program, slots chan struct{}) {
	slots <- struct{}{}
	defer func() { <-slots }()
	source := t.Kubectl("-n %s exec %s -c %s -- /bin/%s status -o json", cli.Namespace, to.Pod.Name, p.container, p.name)
	to.Fact = read(ctx, source, func(ctx context.Context) (*R, error) {
		if to.Pod.IP == "" || to.Pod.Waiting != "" {
			return nil, fmt.Errorf("the container doesn't run: %s %s", to.Pod.Phase, to.Pod.Waiting)
		}
		// Shorter than the caller's timeout, so that the error of one way is returned even
		// if the other one hangs.
		ctx, cancel := context.WithTimeoutCause(ctx, readTimeout-hedge, errors.New("no answer within "+(readTimeout-hedge).String()))
		defer cancel()
		type answer struct {
			way    string
			report *R
			err    error
		}
		answers := make(chan answer, 2)
		ask := func(way string, get func(context.Context, string, program, *flight) ([]byte, error)) {
			report, flight := new(R), &flight{of: t}
			defer flight.land()
			body, err := get(ctx, to.Pod.Name, p, flight)
			if err == nil {
				err = t.weigh(body)
			}
			if err == nil {
				err = json.Unmarshal(body, report)
			}
			answers <- answer{way, report, err}
		}
		go ask("exec", t.exec)
		late := time.NewTimer(hedge)
		defer late.Stop()
		asked, failed := 1, []error(nil)
		for {
			select {
			case a := <-answers:
				if a.err == nil {
					return a.report, nil
				}
				failed = append(failed, fmt.Errorf("%s: %s", a.way, printable.Text(a.err.Error(), 120)))
				if len(failed) == 2 {
					return nil, fmt.Errorf("%w; %w", failed[0], failed[1])
				}
			case <-late.C:
			case <-ctx.Done():
				return nil, errors.Join(append(failed, context.Cause(ctx))...)
			}
			if asked == 1 {
				asked++
				go ask("proxy", t.proxied)
			}
		}
	})
}

// proxied fetches the page through the API server.
func (t *collector) proxied(ctx context.Context, pod string, p program, f *flight) ([]byte, error) {
	stream, err := t.client.CoreV1().RESTClient().Get().Namespace(cli.Namespace).Resource("pods").
		Name(pod + ":" + strconv.Itoa(p.port)).SubResource("proxy").Suffix("status").Stream(cli.WithRaw(ctx, maxReport))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var body bytes.Buffer
	_, err = io.Copy(io.MultiWriter(f, &body), stream)
	return body.Bytes(), err
}

// exec runs the program's command "status" in its pod and returns its output. A failure of
// the command is ignored: its exit code is the state that the report contains.
func (t *collector) exec(ctx context.Context, pod string, p program, f *flight) ([]byte, error) {
	body, err := t.access.Exec(ctx, cli.Namespace, pod, p.container, []string{"/bin/" + p.name, "status", "-o", "json"}, maxReport, f.hold)
	if errors.Is(err, errFlight) {
		return nil, err
	}
	if len(body) > 0 {
		return body, nil
	}
	return nil, cmp.Or(err, io.ErrUnexpectedEOF)
}

// maxFlight bounds the bytes of all reports of a cluster that are being read at the same time: those
// of as many agents as are asked, each with 10,000 peers, read in both ways.
const maxFlight = 256 << 20

var errFlight = fmt.Errorf("the reports of this cluster are too large to be read at the same time: more than %d bytes", maxFlight)

// flight counts the bytes of a report that is being read.
type flight struct {
	of   *collector
	held int64
}

// hold counts more bytes, and returns an error if those of all reports are too many.
func (f *flight) hold(bytes int) error {
	f.held += int64(bytes)
	if f.of.flying.Add(int64(bytes)) > maxFlight {
		return errFlight
	}
	return nil
}

// Write implements io.Writer.
func (f *flight) Write(p []byte) (int, error) { return len(p), f.hold(len(p)) }

// land ends the flight: the report is decoded, or dropped.
func (f *flight) land() { f.of.flying.Add(-f.held) }

// Bounds of the memory of decoded reports, as cli.Weight estimates it: it counts each value
// as the largest struct of Kubernetes, which is eight times as large as the types here. An
// agent's report has 7 KiB for each peer.
const (
	maxWeight  = 128 << 20 // of one report
	maxWeights = 8 << 30   // of all reports of a cluster
)

// weigh returns an error if a report would take too much memory.
func (t *collector) weigh(body []byte) error {
	weight, err := cli.Weight(body)
	switch {
	case err != nil:
		return err
	case weight > maxWeight:
		return fmt.Errorf("the report takes too much memory: more than %d bytes", maxWeight)
	case t.weight.Add(weight) > maxWeights:
		return fmt.Errorf("the reports of this cluster take too much memory: more than %d bytes", int64(maxWeights))
	}
	return nil
}
