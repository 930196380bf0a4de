package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/services"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const (
	namespace = "shop"
	mark      = "mirror.semaphore.uw.io/mirror-service"
)

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// fill creates the services from one number to another.
func (b *bench) fill(ctx context.Context, from, to int) error {
	_, err := b.remote.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return testbed.InParallel(ctx, to-from, func(ctx context.Context, n int) error {
		i := from + n
		name, labels := serviceName(i), map[string]string{mark: "true"}
		_, err := b.remote.Client().CoreV1().Services(namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		port, portName, protocol, yes := int32(8080), "http", corev1.ProtocolTCP, true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{mark: "true", discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
		}
		for e := range b.endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address(i*b.endpoints + e)}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			})
		}
		_, err = b.remote.Client().DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
		return err
	})
}

// address returns one of the remote's pod subnet, 10.4.0.0/16.
func address(n int) string { return fmt.Sprintf("10.4.%d.%d", n/250%250, 1+n%250) }

// mirrored returns how many slices of ours there are.
func (b *bench) mirrored(ctx context.Context) (int, error) {
	list, err := b.local.Client().DiscoveryV1().EndpointSlices(services.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=semaphore-service-mirror", ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}

func (b *bench) waitMirrored(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("not within five minutes"))
	defer cancel()
	return testbed.Wait(ctx, fmt.Sprintf("%d mirrors", n), func(ctx context.Context) error {
		have, err := b.mirrored(ctx)
		if err == nil && have != n {
			err = fmt.Errorf("%d", have)
		}
		return err
	})
}

// writes returns how many requests the replica has made that change something.
func (b *bench) writes(ctx context.Context) (int, error) {
	body, err := b.replica.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "semaphore_service_mirror_writes_total{") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err != nil {
				return 0, err
			}
			total += int(value)
		}
	}
	return total, nil
}

// clean removes all mirrors.
func (b *bench) clean(ctx context.Context) error {
	list, err := b.local.Client().CoreV1().Services(services.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	err = testbed.InParallel(ctx, len(list.Items), func(ctx context.Context, i int) error {
		return b.local.Client().CoreV1().Services(services.Namespace).Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{})
	})
	return errors.Join(err, b.local.Client().DiscoveryV1().EndpointSlices(services.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// fromNothing measures from the start of the process to the last mirror, and
// who was busy with it.
func (b *bench) fromNothing(ctx context.Context) error {
	var ours []time.Duration
	var cost string
	for range b.runs {
		if b.replica.Process() != nil {
			if err := b.replica.Stop(ctx); err != nil {
				return err
			}
			if err := b.clean(ctx); err != nil {
				return err
			}
		}
		started := time.Now()
		if err := b.replica.Start(); err != nil {
			return err
		}
		used, err := newUsage(b.replica.Process().PID())
		if err != nil {
			return err
		}
		if err := b.waitMirrored(ctx, b.services); err != nil {
			return err
		}
		ours = append(ours, time.Since(started))
		if cost, err = used.since(); err != nil {
			return err
		}
	}
	writes, err := b.writes(ctx)
	if err != nil {
		return err
	}
	slices.Sort(ours)
	b.row(fmt.Sprintf("%d services x %d from nothing", b.services, b.endpoints), "%.2f s (%v); %.2f requests per object; %s",
		ours[len(ours)/2].Seconds(), rounded(ours), float64(writes)/float64(2*b.services), cost)
	return nil
}

func rounded(all []time.Duration) []time.Duration {
	var r []time.Duration
	for _, d := range all {
		r = append(r, d.Round(10*time.Millisecond))
	}
	return r
}

// restart measures what a process writes that finds everything in order.
func (b *bench) restart(ctx context.Context) error {
	if err := b.replica.Stop(ctx); err != nil {
		return err
	}
	started := time.Now()
	if err := b.replica.Start(); err != nil {
		return err
	}
	var took time.Duration
	err := testbed.Wait(ctx, "readiness", func(ctx context.Context) error {
		_, err := b.replica.Get(ctx, "/readyz")
		took = time.Since(started)
		return err
	})
	if err != nil {
		return err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	writes, err := b.writes(ctx)
	if err != nil {
		return err
	}
	b.row("restart with nothing to do", "%d writes, ready after %.2f s", writes, took.Seconds())
	return nil
}

// changes changes endpoints at a rate and measures how long it takes from the
// event of the remote API server to that of the local one, both as a client of
// our own sees them, and from the request that made the change.
func (b *bench) changes(ctx context.Context, rate int) error {
	remote, err := watchSlices(ctx, b.remote, namespace)
	if err != nil {
		return err
	}
	local, err := watchSlices(ctx, b.local, services.Namespace)
	if err != nil {
		return err
	}
	before, err := b.writes(ctx)
	if err != nil {
		return err
	}
	used, err := newUsage(b.replica.Process().PID())
	if err != nil {
		return err
	}
	total := int(b.load.Seconds()) * rate
	sent := make([]time.Time, total)
	key := func(n int) string { return fmt.Sprintf("h%d-%d", rate, n) }
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	errs := make(chan error, total)
	var writing sync.WaitGroup
	for n := range total {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		sent[n] = time.Now()
		writing.Go(func() {
			body := fmt.Sprintf(`[{"op":"add","path":"/endpoints/0/hostname","value":%q}]`, key(n))
			_, err := b.remote.Client().DiscoveryV1().EndpointSlices(namespace).Patch(ctx, serviceName(n%b.services), types.JSONPatchType, []byte(body), metav1.PatchOptions{})
			errs <- err
		})
	}
	writing.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	cost, err := used.since()
	if err != nil {
		return err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	there, here := remote.end(), local.end()
	var ours, whole []time.Duration
	for n := range total {
		if at, ok := here[key(n)]; ok {
			ours = append(ours, at.Sub(there[key(n)]))
			whole = append(whole, at.Sub(sent[n]))
		}
	}
	after, err := b.writes(ctx)
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return errors.New("no change arrived")
	}
	slices.Sort(ours)
	slices.Sort(whole)
	b.row(fmt.Sprintf("%d changes/s for %v", rate, b.load), "p50 %v, p99 %v from event to event; %v, %v from the request; missing %d of %d; %.2f writes a change; %s",
		quantile(ours, .5), quantile(ours, .99), quantile(whole, .5), quantile(whole, .99),
		total-len(ours), total, float64(after-before)/float64(total), cost)
	return nil
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(100 * time.Microsecond)
}

// arrivals are the times at which slices were first seen with a host name.
type arrivals struct {
	watch watch.Interface
	done  chan struct{}
	first map[string]time.Time
}

func watchSlices(ctx context.Context, c *testbed.Cluster, namespace string) (*arrivals, error) {
	api := c.Client().DiscoveryV1().EndpointSlices(namespace)
	list, err := api.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	a := &arrivals{watch: w, done: make(chan struct{}), first: map[string]time.Time{}}
	go func() {
		defer close(a.done)
		for event := range w.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok || len(slice.Endpoints) == 0 || slice.Endpoints[0].Hostname == nil {
				continue
			}
			if key := *slice.Endpoints[0].Hostname; a.first[key].IsZero() {
				a.first[key] = time.Now()
			}
		}
	}()
	return a, nil
}

func (a *arrivals) end() map[string]time.Time {
	a.watch.Stop()
	<-a.done
	return a.first
}

// memory measures the resident set with many services.
func (b *bench) memory(ctx context.Context) error {
	small, err := resident(b.replica.Process().PID())
	if err != nil {
		return err
	}
	b.say("creating %d services", b.large-b.services)
	if err := b.fill(ctx, b.services, b.large); err != nil {
		return err
	}
	if err := b.waitMirrored(ctx, b.large); err != nil {
		return err
	}
	peak, err := resident(b.replica.Process().PID())
	if err != nil {
		return err
	}
	if err := b.replica.Stop(ctx); err != nil {
		return err
	}
	if err := b.replica.Start(); err != nil {
		return err
	}
	if err := pause(ctx, 20*time.Second); err != nil {
		return err
	}
	fresh, err := resident(b.replica.Process().PID())
	if err != nil {
		return err
	}
	writes, err := b.writes(ctx)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("memory with %d services x %d", b.large, b.endpoints), "%d MB after a restart (%d writes), %d MB after mirroring them; with %d: %d MB",
		fresh>>20, writes, peak>>20, b.services, small>>20)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// usage is what processors had done at one moment: all, and for one process.
type usage struct {
	pid        int
	at         time.Time
	ours, busy float64
}

func newUsage(pid int) (*usage, error) {
	ours, err := cpuSeconds(pid)
	if err != nil {
		return nil, err
	}
	busy, err := busySeconds()
	return &usage{pid: pid, at: time.Now(), ours: ours, busy: busy}, err
}

// since says what share of one processor the process used since, and what the
// whole machine did.
func (u *usage) since() (string, error) {
	now, err := newUsage(u.pid)
	if err != nil {
		return "", err
	}
	passed := now.at.Sub(u.at).Seconds()
	return fmt.Sprintf("our CPU %.0f %%, the machine's %.0f %% of %d", 100*(now.ours-u.ours)/passed,
		100*(now.busy-u.busy)/passed, 100*runtime.NumCPU()), nil
}

// busySeconds returns the time that all processors were not idle: the first
// line of /proc/stat but idle and iowait (proc_stat(5)).
func busySeconds() (float64, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	total := 0.0
	for i, field := range strings.Fields(line)[1:9] {
		value, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 {
			total += value
		}
	}
	return total / 100, nil
}

// cpuSeconds returns the processor time of a process: fields 14 and 15 of
// /proc/<pid>/stat, in units of 10 ms (proc_pid_stat(5)).
func cpuSeconds(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	user, errUser := strconv.ParseFloat(fields[11], 64)
	system, errSystem := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, errors.Join(errUser, errSystem)
}

// resident returns the resident set of a process in bytes.
func resident(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
