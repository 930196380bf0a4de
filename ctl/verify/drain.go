package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

const (
	drained = "drained" // the test
	// drainMark is the annotation of the Service kubernetes that drains its cluster
	// (docs/service-mirror.md).
	drainMark = "mirror.semaphore.uw.io/drained"
	// drainFor is the default duration of the drained state, in which endpoints are withdrawn
	// within seconds, and drainAtLeast its minimum.
	drainFor, drainAtLeast = 20 * time.Second, 5 * time.Second
	// undoWithin bounds the attempts to undo it, and answerWithin each request.
	undoWithin, answerWithin = 30 * time.Second, 5 * time.Second
	lookEvery                = time.Second
)

// draining is a test of draining one cluster.
type draining struct {
	*cli.Session
	cluster *cli.Cluster
	others  []*other
	lasts   time.Duration
}

// other is a cluster whose pods ask services of the drained one.
type other struct {
	*cli.Cluster
	rows []Row // of what isn't asked
	// beside are the services with ready endpoints in the drained cluster where others have some,
	// too, at the same port and family, which requests have to move to; alone are the further
	// services with ready endpoints there.
	beside, alone map[string]bool
	// moved is how long that took, by service; unread is why its endpoints couldn't be read.
	moved  map[string]time.Duration
	unread error
	// services are the names of those that are asked, by address.
	services map[string]string
}

// drain drains a cluster for a while, and asks its global services and imports from pods of the
// others meanwhile.
func drain(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, plan probe.Plan, which string, lasts time.Duration) (*Report, error) {
	d := &draining{Session: s, cluster: clusters[slices.IndexFunc(clusters, func(c *cli.Cluster) bool { return c.Name == which })], lasts: lasts}
	return d.run(ctx, clusters, inspect.Collect(ctx, clusters), plan)
}

// run tests with what is known of clusters.
func (d *draining) run(ctx context.Context, clusters []*cli.Cluster, surveys []*inspect.Cluster, plan probe.Plan) (*Report, error) {
	which := d.cluster.Name
	service, err := d.cluster.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: read the mark of being drained: %w", which, err)
	}
	if service.Annotations[drainMark] == "true" {
		return nil, cli.Hint(fmt.Errorf("%s is drained already, for maintenance or by a run that was killed, and nothing was changed", which), "to undo it: "+d.remedy())
	}
	plan.Asks = map[[2]string][]reach.ServiceRequest{}
	for i, c := range clusters {
		if err := missing(c.Name, plan.On[c.Name], surveys[i]); err != nil {
			return nil, err
		}
		if c != d.cluster {
			o := &other{Cluster: c, moved: map[string]time.Duration{}, services: map[string]string{}}
			plan.Asks[[2]string{c.Name, which}] = o.choose(ctx, surveys[i], which)
			d.others = append(d.others, o)
		}
	}
	results := &probe.Results{}
	if slices.ContainsFunc(d.others, func(o *other) bool { return len(o.services) > 0 }) {
		if results, err = probe.AskDuring(ctx, clusters, surveys, plan, d.lasts, d.whileDrained); err != nil {
			return nil, err
		}
	}
	return d.judge(results), nil
}

// choose returns the global services and imports to ask: those with ready endpoints in the cluster
// that is to be drained.
func (o *other) choose(ctx context.Context, survey *inspect.Cluster, which string) (asks []reach.ServiceRequest) {
	skip := func(to string, state State, why string) {
		o.rows = append(o.rows, Row{From: o.Name, To: to, What: drained, State: state, Found: why})
	}
	if err := o.look(ctx, which); err != nil || !survey.Imports.Known() {
		why := survey.Imports.Err
		if err != nil {
			why = err.Error()
		}
		skip("", Unknown, "its services can't be read: "+why)
		return nil
	}
	for _, s := range slices.Concat(survey.Imports.Value, survey.ClusterSetServices()) {
		switch {
		case s.Origin != "" || !o.beside[s.DNS()] && !o.alone[s.DNS()]:
			continue
		case s.Headless || s.Port == 0 || len(s.ClusterIPs) == 0:
			skip(s.DNS(), Skipped, "it has no ClusterIP with a port of TCP")
			continue
		case len(asks) == probe.MostAsks:
			skip(s.DNS(), Skipped, fmt.Sprintf("more than %d services of the cluster", probe.MostAsks))
			continue
		}
		ask := reach.ServiceRequest{HTTP: s.HTTP}
		for _, ip := range s.ClusterIPs {
			address := net.JoinHostPort(ip, strconv.Itoa(int(s.Port)))
			ask.Addresses, o.services[address] = append(ask.Addresses, address), s.DNS()
		}
		asks = append(asks, ask)
	}
	return asks
}

// look reads which services have ready endpoints in a cluster.
func (o *other) look(ctx context.Context, which string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	ports, err := inspect.ReadServicePorts(ctx, o.Cluster)
	if err != nil {
		return err
	}
	o.beside, o.alone = map[string]bool{}, map[string]bool{}
	for i := range ports {
		p := &ports[i]
		there, all := 0, 0
		for from, ready := range p.Ready {
			if all += ready; string(from) == which {
				there = ready
			}
		}
		switch {
		case there == 0:
		case there < all:
			o.beside[p.Service] = true
		default:
			o.alone[p.Service] = true
		}
	}
	return nil
}

// whileDrained drains the cluster, and undoes it after a while, or when ctx is done.
func (d *draining) whileDrained(ctx context.Context) (err error) {
	d.Say("draining %s for %s; should this program be killed meanwhile, undo it: %s", d.cluster.Name, d.lasts, d.remedy())
	err = d.annotate(ctx, `"true"`)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return fmt.Errorf("drain %s: %w", d.cluster.Name, err)
	}
	// After any other error it may be drained.
	defer func() { err = errors.Join(err, d.undo(ctx)) }()
	if err != nil {
		return fmt.Errorf("drain %s: %w", d.cluster.Name, err)
	}
	began := time.Now()
	lasting, cancel := context.WithTimeout(ctx, d.lasts)
	defer cancel()
	var group sync.WaitGroup
	for _, o := range d.others {
		group.Go(func() { o.watch(lasting, d.cluster.Name, began) })
	}
	group.Wait()
	<-lasting.Done()
	return context.Cause(ctx)
}

// watch notes when requests of services leave the drained cluster, until all have.
func (o *other) watch(ctx context.Context, which string, began time.Time) {
	before := o.beside
	o.unread = errors.New("no answer")
	_ = wait.PollUntilContextCancel(ctx, lookEvery, true, func(ctx context.Context) (bool, error) {
		if err := o.look(ctx, which); err != nil {
			if ctx.Err() == nil { // else the time is over, and the last answer counts
				o.unread = err
			}
			return false, nil
		}
		o.unread = nil
		for service := range before {
			if _, known := o.moved[service]; !known && !o.beside[service] && !o.alone[service] {
				o.moved[service] = time.Since(began)
			}
		}
		return len(o.moved) == len(before), nil
	}) // What hasn't left until then isn't in moved.
	o.beside = before
}

// annotate sets the mark of being drained.
func (d *draining) annotate(ctx context.Context, value string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, drainMark, value)
	_, err := d.cluster.Client.CoreV1().Services(metav1.NamespaceDefault).Patch(ctx, "kubernetes", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// undo removes the mark of being drained, also when ctx is done.
func (d *draining) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	last := errors.New("no answer")
	_ = wait.PollUntilContextCancel(ctx, lookEvery, true, func(ctx context.Context) (bool, error) {
		last = d.annotate(ctx, "null")
		return last == nil, nil
	})
	if last == nil {
		d.Say("%s is no longer drained", d.cluster.Name)
		return nil
	}
	may := d.cluster.Name + " may still be drained"
	return cli.Hint(fmt.Errorf("%s: %w", may, last), may+", undo it: "+d.remedy())
}

// remedy is the command that undoes the drained state.
func (d *draining) remedy() string {
	return d.cluster.Kubectl("-n %s annotate service kubernetes %s-", metav1.NamespaceDefault, drainMark)
}

// judge compares what the pods of each cluster got from a service with what is expected:
//
//	no pod has asked                  not known
//	no service could be tested        not known
//	a request is lost                 wrong
//	endpoints there stay in use       wrong, unless no other cluster has ready ones
func (d *draining) judge(results *probe.Results) *Report {
	r := &Report{Verdict: Right, Rows: []Row{}}
	for _, o := range d.others {
		tests := map[string][]*probe.ServiceTest{}
		for i := range results.Requests {
			if a := &results.Requests[i]; a.From.Cluster == o.Name {
				service := o.services[a.Addresses[0]]
				tests[service] = append(tests[service], a)
			}
		}
		for _, service := range slices.Sorted(maps.Keys(tests)) {
			r.Rows = append(r.Rows, o.judge(service, tests[service], d))
		}
		r.Rows = append(r.Rows, o.rows...)
	}
	if len(r.Rows) == 0 {
		r.Rows = append(r.Rows, Row{To: d.cluster.Name, What: drained, State: Unknown, Found: "no global service or import of the other clusters has ready endpoints there"})
	}
	if !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.State != Skipped }) {
		r.Rows = append(r.Rows, Row{To: d.cluster.Name, What: drained, State: Unknown, Found: "no service could be tested"})
	}
	r.settle()
	return r
}

func (o *other) judge(service string, tests []*probe.ServiceTest, d *draining) Row {
	row := Row{
		From: o.Name, To: service, What: drained, State: Right,
		Expected: "no request is lost, and none goes to " + d.cluster.Name, Requests: &Requests{},
	}
	failed, skipped := "", ""
	for _, a := range tests {
		row.Requests.Sent, row.Requests.Lost = row.Requests.Sent+a.Result.Sent, row.Requests.Lost+a.Result.Lost
		for _, address := range slices.Sorted(maps.Keys(a.Result.Failed)) {
			failed = cmp.Or(failed, fmt.Sprintf(", from %s to %s: %s", a.From.Node, address, a.Result.Failed[address]))
		}
		skipped = cmp.Or(skipped, a.Skipped)
		if a.Skipped == "" && len(a.Result.Failed) == 0 && a.Result.Sent == 0 {
			skipped = "the image of the pods is too old for this test; set another one with --image"
		}
	}
	row.Found = fmt.Sprintf("%d of %s lost%s", row.Requests.Lost, cli.Count(row.Requests.Sent, "request"), failed)
	took, moved := o.moved[service]
	switch {
	case failed != "":
		row.State = Wrong
	case skipped != "":
		row.State, row.Found = Unknown, skipped
	case !o.beside[service]:
		row.Found += "; only " + d.cluster.Name + " has ready endpoints, which stay in use"
	case moved:
		row.Found += fmt.Sprintf("; they left %s within %.1f s", d.cluster.Name, took.Seconds())
	case o.unread != nil:
		row.State, row.Found = Unknown, row.Found+"; whether they left "+d.cluster.Name+" can't be read: "+o.unread.Error()
	default:
		row.State, row.Found = Wrong, row.Found+fmt.Sprintf("; endpoints of %s are in use after %s: see semaphorectl doctor about semaphore-service-mirror of %s", d.cluster.Name, d.lasts, o.Name)
	}
	return row
}
