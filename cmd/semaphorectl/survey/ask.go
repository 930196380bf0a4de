package survey

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

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxReport bounds a report, in bytes; that of an agent with 10,000 peers has 5 MB.
const maxReport = 32 << 20

// program is how one of ours is asked.
type program struct {
	name, container string
	port            int // of metrics and status
}

// ask asks all programs of ours for their reports, so many at once.
func (t *taker) ask(ctx context.Context) {
	agent := program{WireGuard, "agent", 7773}
	mirror := program{ServiceMirror, "controller", 8080}
	policy := program{NetworkPolicy, "controller", 8080}
	places := make(chan struct{}, askers)
	var asking sync.WaitGroup
	for i := range t.Pods.Value {
		switch pod := t.Pods.Value[i]; pod.Program {
		case agent.name:
			t.Agents = append(t.Agents, Reported[Agent]{Pod: pod})
		case mirror.name:
			t.Mirrors = append(t.Mirrors, Reported[Mirror]{Pod: pod})
		case policy.name:
			t.Policies = append(t.Policies, Reported[Policy]{Pod: pod})
		}
	}
	for i := range t.Agents {
		asking.Go(func() { reported(ctx, t, &t.Agents[i], agent, places) })
	}
	for i := range t.Mirrors {
		asking.Go(func() { reported(ctx, t, &t.Mirrors[i], mirror, places) })
	}
	for i := range t.Policies {
		asking.Go(func() { reported(ctx, t, &t.Policies[i], policy, places) })
	}
	asking.Wait()
}

// hedge is how long the command may take before the page is fetched beside it.
const hedge = 2 * time.Second

// reported asks the program of a pod. Its command "status" comes first: it works
// wherever there is a kubelet, asks the very process of this pod, and needs no token of
// the program's own. Where it can't be run, or takes long, the API server is asked for the
// page, which it gets where no firewall or NetworkPolicy is in between, and no token is
// asked for.
func reported[R any](ctx context.Context, t *taker, to *Reported[R], p program, places chan struct{}) {
	places <- struct{}{}
	defer func() { <-places }()
	source := t.Kubectl("-n %s exec %s -c %s -- /bin/%s status -o json", cli.Namespace, to.Pod.Name, p.container, p.name)
	to.Fact = read(ctx, source, func(ctx context.Context) (*R, error) {
		if to.Pod.IP == "" || to.Pod.Waiting != "" {
			return nil, fmt.Errorf("the container doesn't run: %s %s", to.Pod.Phase, to.Pod.Waiting)
		}
		// It ends before its reader does, so that one way's error is told although the
		// other one hangs.
		ctx, cancel := context.WithTimeoutCause(ctx, readTimeout-hedge, errors.New("no answer within "+(readTimeout-hedge).String()))
		defer cancel()
		type answer struct {
			way    string
			report *R
			err    error
		}
		answers := make(chan answer, 2)
		ask := func(way string, get func(context.Context, string, program) ([]byte, error)) {
			report := new(R)
			body, err := get(ctx, to.Pod.Name, p)
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

// proxied reads the page through the API server.
func (t *taker) proxied(ctx context.Context, pod string, p program) ([]byte, error) {
	stream, err := t.client.CoreV1().RESTClient().Get().Namespace(cli.Namespace).Resource("pods").
		Name(pod + ":" + strconv.Itoa(p.port)).SubResource("proxy").Suffix("status").Stream(kube.WithRaw(ctx, maxReport))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return io.ReadAll(stream)
}

// exec runs the program's command "status" in its pod and returns what it prints. Its exit
// code says that something is wrong, which the report says as well.
func (t *taker) exec(ctx context.Context, pod string, p program) ([]byte, error) {
	body, err := t.access.Exec(ctx, cli.Namespace, pod, p.container, []string{"/bin/" + p.name, "status", "-o", "json"}, maxReport)
	if len(body) > 0 {
		return body, nil
	}
	return nil, cmp.Or(err, io.ErrUnexpectedEOF)
}

// Bounds of what reports may take in memory, as kube.Weight counts it: each of their
// values as the largest struct of Kubernetes, which is eight times as large as those here.
// An agent's report has 7 KiB for each peer.
const (
	mostWeight  = 128 << 20 // of one report
	mostWeights = 8 << 30   // of all reports of a cluster
)

// weigh reports whether a report may be decoded.
func (t *taker) weigh(body []byte) error {
	weight, err := kube.Weight(body)
	switch {
	case err != nil:
		return err
	case weight > mostWeight:
		return fmt.Errorf("the report takes too much memory: more than %d bytes", mostWeight)
	case t.weight.Add(weight) > mostWeights:
		return fmt.Errorf("the reports of this cluster take too much memory: more than %d bytes", int64(mostWeights))
	}
	return nil
}
