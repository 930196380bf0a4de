package survey

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
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
		Name(pod + ":" + strconv.Itoa(p.port)).SubResource("proxy").Suffix("status").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	body, err := io.ReadAll(io.LimitReader(stream, maxReport+1))
	if err == nil && len(body) > maxReport {
		err = fmt.Errorf("the report has more than %d bytes", maxReport)
	}
	return body, err
}

// exec runs the program's command "status" in its pod and returns what it prints. Its exit
// code says that something is wrong, which the report says as well.
func (t *taker) exec(ctx context.Context, pod string, p program) ([]byte, error) {
	request := t.client.CoreV1().RESTClient().Post().Namespace(cli.Namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: p.container, Command: []string{"/bin/" + p.name, "status", "-o", "json"}, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	config := rest.CopyConfig(t.access.Config)
	// WebSockets are what API servers have from 1.31 on, and SPDY before.
	streams, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return nil, err
	}
	either, err := remotecommand.NewFallbackExecutor(streams, spdy, func(error) bool { return true })
	if err != nil {
		return nil, err
	}
	var stdout, stderr bounded
	stdout.left, stderr.left = maxReport, 4096
	// What the library logs of a stream that ends early is in the error, too.
	err = either.StreamWithContext(klog.NewContext(ctx, logr.Discard()), remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	switch {
	case stdout.full:
		return nil, fmt.Errorf("the report has more than %d bytes", maxReport)
	case stdout.Len() > 0:
		return stdout.Bytes(), nil
	case err != nil && stderr.Len() > 0:
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	case err != nil:
		return nil, err
	}
	return nil, io.ErrUnexpectedEOF
}

// bounded keeps so many bytes at most, and ends the stream that has more.
type bounded struct {
	bytes.Buffer
	left int
	full bool
}

var errFull = errors.New("too much")

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		b.full = true
		return 0, errFull
	}
	b.left -= len(p)
	return b.Buffer.Write(p)
}
