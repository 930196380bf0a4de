package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const mark = "mirror.semaphore.uw.io/mirror-service"

// copies are services of the remote cluster that are copied to the local one.
type copies struct {
	name     string            // in results
	from, to string            // namespaces, there and here
	services int               // there
	labels   map[string]string // of each
}

func (b *bench) mirrors() copies {
	return copies{from: "shop", to: programs.Namespace, services: b.services, labels: map[string]string{mark: "true"}}
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// fill creates the services from one number to another in a cluster.
func (b *bench) fill(ctx context.Context, in kubernetes.Interface, of copies, from, to int) error {
	_, err := in.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: of.from}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return testbed.InParallel(ctx, to-from, func(ctx context.Context, n int) error {
		i := from + n
		name := serviceName(i)
		_, err := in.CoreV1().Services(of.from).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of.labels},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		port, portName, protocol, yes := int32(8080), "http", corev1.ProtocolTCP, true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: labels.Merge(of.labels, labels.Set{discoveryv1.LabelServiceName: name})},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
		}
		for e := range b.endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address(i*b.endpoints + e)}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			})
		}
		_, err = in.DiscoveryV1().EndpointSlices(of.from).Create(ctx, slice, metav1.CreateOptions{})
		return err
	})
}

// address returns one of the remote's pod subnet, 10.4.0.0/16.
func address(n int) string { return fmt.Sprintf("10.4.%d.%d", n/250%250, 1+n%250) }

// waitCopied waits until there are so many slices of ours in a namespace. It follows their
// metadata alone: to list them again and again would take more of the machine than to make them.
func (b *bench) waitCopied(ctx context.Context, namespace string, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("not within five minutes"))
	defer cancel()
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=semaphore-service-mirror"}
	list, err := b.slices.Namespace(namespace).List(ctx, options)
	if err != nil {
		return err
	}
	have := len(list.Items)
	options.ResourceVersion = list.ResourceVersion
	w, err := b.slices.Namespace(namespace).Watch(ctx, options)
	if err != nil {
		return err
	}
	defer w.Stop()
	for have != n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d slices: %d: %w", n, have, context.Cause(ctx))
		case event, open := <-w.ResultChan():
			if !open {
				return fmt.Errorf("wait for %d slices: the watch ended at %d", n, have)
			}
			switch event.Type {
			case watch.Added:
				have++
			case watch.Deleted:
				have--
			}
		}
	}
	return nil
}

// writes returns how many requests the replica has made that change something.
func (b *bench) writes(ctx context.Context) (int, error) {
	return b.Writes(ctx, "semaphore_service_mirror_writes_total")
}

// clean removes all mirrors.
func (b *bench) clean(ctx context.Context) error {
	list, err := b.local.CoreV1().Services(programs.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	err = testbed.InParallel(ctx, len(list.Items), func(ctx context.Context, i int) error {
		return b.local.CoreV1().Services(programs.Namespace).Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{})
	})
	return errors.Join(err, b.local.DiscoveryV1().EndpointSlices(programs.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// fromNothing measures from the start of the process to the last mirror.
func (b *bench) fromNothing(ctx context.Context) error {
	var ours measure.Latencies
	var cost string
	for range b.runs {
		var took time.Duration
		var err error
		if took, cost, err = b.once(ctx, b.clean, b.mirrored); err != nil {
			return err
		}
		ours = append(ours, took)
	}
	writes, err := b.writes(ctx)
	if err != nil {
		return err
	}
	b.results = append(b.results, measure.Alone(fmt.Sprintf("mirror %d services of %d endpoints", b.services, b.endpoints), "s", ours.Quantile(0.5).Seconds()))
	b.row(fmt.Sprintf("%d services x %d from nothing", b.services, b.endpoints), "%.2f s (%v); %.2f requests per object; %s",
		ours.Quantile(0.5).Seconds(), rounded(ours), float64(writes)/float64(2*b.services), cost)
	return nil
}

func (b *bench) mirrored(ctx context.Context) error {
	return b.waitCopied(ctx, programs.Namespace, b.services)
}

// once starts the program again, with nothing of ours in the local cluster, and measures until
// the end of wait, and the processor time of each process.
func (b *bench) once(ctx context.Context, clean, wait func(context.Context) error) (took time.Duration, cost string, err error) {
	if b.Program.Process() != nil {
		if err := b.Program.Stop(ctx); err != nil {
			return 0, "", err
		}
	}
	if err := clean(ctx); err != nil {
		return 0, "", err
	}
	started := time.Now()
	if err := b.Program.Start(); err != nil {
		return 0, "", err
	}
	used, err := b.Usage()
	if err != nil {
		return 0, "", err
	}
	if err := wait(ctx); err != nil {
		return 0, "", err
	}
	took = time.Since(started)
	cost, err = used.Since()
	return took, cost, err
}

func rounded(all []time.Duration) []time.Duration {
	var r []time.Duration
	for _, d := range all {
		r = append(r, d.Round(10*time.Millisecond))
	}
	return r
}
