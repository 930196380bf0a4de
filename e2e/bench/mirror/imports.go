package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// exports are exported services of several clusters: the remote one under several names.
type exports struct {
	copies
	clusters []string
}

func (e exports) all() int { return e.services * len(e.clusters) }

// importSteps are the steps of -imports.
func (b *bench) importSteps() []func(context.Context) error {
	two := exports{copies{from: "two", to: "two", services: b.services / 2}, []string{b.Remote.Name, "twin"}}
	one := exports{copies{name: " of exports", from: "one", to: "one", services: b.services}, []string{b.Remote.Name}}
	return []func(context.Context) error{
		b.serveImports,
		func(ctx context.Context) error { return b.publish(ctx, two) },
		func(ctx context.Context) error { return b.besideMirrors(ctx, two) },
		func(ctx context.Context) error { return b.withdraw(ctx, two) },
		func(ctx context.Context) error { return b.publish(ctx, one) },
		func(ctx context.Context) error { return b.besideMirrors(ctx, one) },
		func(ctx context.Context) error { return b.changesBesideMirrors(ctx, one, 200) },
	}
}

// serveImports installs the CRDs, and the rights to use them.
func (b *bench) serveImports(ctx context.Context) error {
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	for _, c := range []*testbed.Cluster{b.Local, b.Remote} {
		for _, text := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(text, &o.Object); err != nil {
				return err
			}
			if err := c.ApplyObjects(ctx, o); err != nil {
				return err
			}
		}
	}
	return b.Local.Apply(ctx, filepath.Join(root, "deploy", "service-mirror", "mcs", "rbac.yaml"))
}

// mirrorsOnly makes the program's next process mirror services, and importsOnly import those that
// clusters export.
func (b *bench) mirrorsOnly() {
	maps.Copy(b.Program.Env, map[string]string{"SEMAPHORE_REMOTES": b.Remote.Name, "SEMAPHORE_MCS": "off", "SEMAPHORE_MIRROR_SELECTOR": mark + "=true"})
	delete(b.Program.Env, "SEMAPHORE_GLOBAL_SELECTOR")
}

func (b *bench) importsOnly(clusters []string) {
	env := b.Program.Env
	maps.Copy(env, map[string]string{
		"SEMAPHORE_REMOTES": strings.Join(clusters, ","), "SEMAPHORE_MCS": "on", "SEMAPHORE_MIRROR_SELECTOR": "", "SEMAPHORE_GLOBAL_SELECTOR": "",
	})
	of := programs.Variable(b.Remote.Name, "")
	for _, c := range clusters {
		for name, value := range maps.Clone(env) {
			// Those of two remotes must not overlap.
			if rest, is := strings.CutPrefix(name, of); is && rest != "POD_SUBNETS" {
				env[programs.Variable(c, rest)] = value
			}
		}
	}
}

// besideMirrors measures from the start of the process until all imports are ready and have
// all slices, in pairs with mirrors of as many services.
func (b *bench) besideMirrors(ctx context.Context, of exports) error {
	var ours, beside, ratios []float64
	var cost string
	var until, writes int
	for range b.runs {
		b.mirrorsOnly()
		mirrors, _, err := b.once(ctx, b.clean, b.mirrored)
		if err != nil {
			return err
		}
		b.importsOnly(of.clusters)
		var imports time.Duration
		imports, cost, err = b.once(ctx, func(ctx context.Context) error { return b.cleanImports(ctx, of.to) }, func(ctx context.Context) error { return b.imported(ctx, of) })
		if err != nil {
			return err
		}
		if until, err = b.writes(ctx); err != nil {
			return err
		}
		if writes, err = b.still(ctx); err != nil {
			return err
		}
		ours, beside, ratios = append(ours, imports.Seconds()), append(beside, mirrors.Seconds()), append(ratios, imports.Seconds()/mirrors.Seconds())
	}
	name := fmt.Sprintf("import %d exports of %d endpoints from %d clusters, %d names", of.all(), b.endpoints, len(of.clusters), of.services)
	r := measure.Compared(name, "s", fmt.Sprintf("mirror %d services", b.services), ours, beside, ratios)
	b.results = append(b.results, r)
	b.row(name, "%.2f s (%.2f); mirrors %.2f s (%.2f); ratio %.2f (%.2f to %.2f); %d writes until then, %d in all; %s", *r.Ours, ours, *r.Beside, beside, *r.Ratio, r.Spread[0], r.Spread[1], until, writes, cost)
	return nil
}

// publish creates services and their exports.
func (b *bench) publish(ctx context.Context, of exports) error {
	measure.Say("exporting %d services", of.services)
	if err := errors.Join(b.fill(ctx, b.local, of.copies, 0, 0), b.fill(ctx, b.remote, of.copies, 0, of.services)); err != nil {
		return err
	}
	return testbed.InParallel(ctx, of.services, func(ctx context.Context, i int) error {
		_, err := b.multi[b.Remote.Name].ServiceExports(of.from).Create(ctx, &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)}}, metav1.CreateOptions{})
		return err
	})
}

// withdraw removes exports, and waits until nothing of them is left.
func (b *bench) withdraw(ctx context.Context, of exports) error {
	err := testbed.InParallel(ctx, of.services, func(ctx context.Context, i int) error {
		return b.multi[b.Remote.Name].ServiceExports(of.from).Delete(ctx, serviceName(i), metav1.DeleteOptions{})
	})
	return errors.Join(err, b.waitCopied(ctx, of.to, 0))
}

// imported waits until all imports are ready.
func (b *bench) imported(ctx context.Context, of exports) error {
	if err := b.waitCopied(ctx, of.to, of.all()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("not within five minutes"))
	defer cancel()
	api := b.multi[b.Local.Name].ServiceImports(of.to)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := map[string]bool{}
	note := func(i *v1beta1.ServiceImport) {
		if len(i.Spec.IPs) > 0 && meta.IsStatusConditionTrue(i.Status.Conditions, string(v1beta1.ServiceImportConditionReady)) {
			ready[i.Name] = true
		}
	}
	for i := range list.Items {
		note(&list.Items[i])
	}
	w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for len(ready) < of.services {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d imports: %d: %w", of.services, len(ready), context.Cause(ctx))
		case event, open := <-w.ResultChan():
			if !open {
				return fmt.Errorf("wait for %d imports: the watch ended at %d", of.services, len(ready))
			}
			if i, is := event.Object.(*v1beta1.ServiceImport); is {
				note(i)
			}
		}
	}
	return nil
}

// cleanImports removes the imports of a namespace, and what belongs to them: no collector of
// garbage runs.
func (b *bench) cleanImports(ctx context.Context, namespace string) error {
	imports, err := b.multi[b.Local.Name].ServiceImports(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	derived, err := b.local.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: "mirror.semaphore.uw.io/imported=true"})
	if err != nil {
		return err
	}
	err = testbed.InParallel(ctx, len(imports.Items), func(ctx context.Context, i int) error {
		err := b.multi[b.Local.Name].ServiceImports(namespace).Delete(ctx, imports.Items[i].Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return errors.Join(err,
		testbed.InParallel(ctx, len(derived.Items), func(ctx context.Context, i int) error {
			return b.local.CoreV1().Services(namespace).Delete(ctx, derived.Items[i].Name, metav1.DeleteOptions{})
		}),
		b.local.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: v1beta1.LabelSourceCluster}),
	)
}

// changesBesideMirrors changes endpoints of mirrors, then those of exports.
func (b *bench) changesBesideMirrors(ctx context.Context, of exports, rate int) error {
	b.mirrorsOnly()
	if _, _, err := b.once(ctx, b.clean, b.mirrored); err != nil {
		return err
	}
	if err := b.changes(ctx, b.mirrors(), rate); err != nil {
		return err
	}
	b.importsOnly(of.clusters)
	if _, _, err := b.once(ctx, func(ctx context.Context) error { return b.cleanImports(ctx, of.to) }, func(ctx context.Context) error { return b.imported(ctx, of) }); err != nil {
		return err
	}
	// Derived Services get their owners after all imports are ready.
	if _, err := b.still(ctx); err != nil {
		return err
	}
	return b.changes(ctx, of.copies, rate)
}

// still waits until the program writes nothing for two seconds, and returns how much it has
// written.
func (b *bench) still(ctx context.Context) (writes int, err error) {
	for before := -1; writes != before; {
		if err := measure.Pause(ctx, 2*time.Second); err != nil {
			return 0, err
		}
		before = writes
		if writes, err = b.writes(ctx); err != nil {
			return 0, err
		}
	}
	return writes, nil
}
