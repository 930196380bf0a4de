package inspect

import (
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

// maxReport bounds a report, in bytes, and so those of askers that are read at the same time; that of an agent
// with 10,000 peers has 5 MB.
const maxReport = 10 << 20

// program is one of our programs that report their status.
type program struct {
	name, container string
	port            int // of metrics and status
}

// agents are the programs on the nodes.
var agents = program{WireGuard, "agent", 7773}

// ask reads the reports of all our programs, askers at the same time.
func (t *collector) ask(ctx context.Context) {
	// Pods that don't answer must not take the time for all else.
	if end, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(end)/2, errors.New("not asked: too many pods don't answer within half of --timeout"))
		defer cancel()
	}
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

// eachWay is how long one way to a report may take. Both fit into the time of the fact.
const eachWay = 7 * time.Second

// reported reads the report of a pod's program. It first runs the program's command
// "status": that needs only a kubelet, reaches the process of this pod, and needs no token
// for the program. If it fails, the page is fetched through the API server, which
// works unless a firewall or NetworkPolicy is in between, or the program requires a token.
func reported[R any](ctx context.Context, t *collector, to *Reported[R], p program, slots chan struct{}) {
	slots <- struct{}{}
	defer func() { <-slots }()
	if ctx.Err() != nil {
		to.Err = context.Cause(ctx).Error()
		return
	}
	source := t.Kubectl("-n %s exec %s -c %s -- /bin/%s status -o json", cli.Namespace, to.Pod.Name, p.container, p.name)
	to.Fact = read(ctx, source, func(ctx context.Context) (*R, error) {
		if to.Pod.IP == "" || to.Pod.Waiting != "" {
			return nil, fmt.Errorf("the container doesn't run: %s %s", to.Pod.Phase, to.Pod.Waiting)
		}
		report, err := one[R](ctx, t, to.Pod.Name, p, t.exec)
		if err == nil {
			return report, nil
		}
		report, second := one[R](ctx, t, to.Pod.Name, p, t.proxied)
		if second == nil {
			return report, nil
		}
		return nil, fmt.Errorf("exec: %s; proxy: %s", printable.Text(err.Error(), 120), printable.Text(second.Error(), 120))
	})
}

// one reads a report in one way.
func one[R any](ctx context.Context, t *collector, pod string, p program, get func(context.Context, string, program) ([]byte, error)) (*R, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, eachWay, errors.New("no answer within "+eachWay.String()))
	defer cancel()
	body, err := get(ctx, pod, p)
	if err == nil {
		err = t.weigh(body)
	}
	report := new(R)
	if err == nil {
		err = json.Unmarshal(body, report)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return report, err
}

// proxied fetches the page through the API server.
func (t *collector) proxied(ctx context.Context, pod string, p program) ([]byte, error) {
	return t.client.CoreV1().RESTClient().Get().Namespace(cli.Namespace).Resource("pods").
		Name(pod + ":" + strconv.Itoa(p.port)).SubResource("proxy").Suffix("status").DoRaw(cli.WithRaw(ctx, maxReport))
}

// exec runs the program's command "status" in its pod and returns its output. A failure of
// the command is ignored: its exit code is the state that the report contains.
func (t *collector) exec(ctx context.Context, pod string, p program) ([]byte, error) {
	body, err := t.access.Exec(ctx, cli.Namespace, pod, p.container, []string{"/bin/" + p.name, "status", "-o", "json"}, maxReport)
	if len(body) > 0 {
		return body, nil
	}
	return nil, cmp.Or(err, io.ErrUnexpectedEOF)
}

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
