package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// bareVariable, in the environment of this program, names the remote between which and
// the local cluster it is to be a bare controller.
const bareVariable = "BENCH_BARE"

// bareWorkers is as many as semaphore-policy has.
const bareWorkers = 8

// bare measures, at the same rate, a controller of client-go's parts alone, with the same
// rights: informers of pods and of network sets, a work queue, and a patch for each set
// that a pod of changed. It is what the work takes without bounds, drift, or anything else.
func (b *bench) bare(ctx context.Context, rate int) error {
	stopping, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ours := b.Program
	if err := ours.Stop(stopping); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if b.Program, err = programs.Prepare(ctx, programs.Config{Name: programs.Policy, Replica: "bare", Binary: self, Port: 8080}, ours.Node, b.Remote); err != nil {
		return err
	}
	b.Program.Env[bareVariable] = b.Remote.Name
	if err := b.Program.Start(); err != nil {
		return err
	}
	// Its first patches are the pods that are there.
	if err := measure.Pause(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := b.changes(ctx, rate, "a bare controller of client-go, "); err != nil {
		return err
	}
	b.Program.Kill()
	b.Program = ours
	if err := ours.Start(); err != nil {
		return err
	}
	// The sets are complete anyway.
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return testbed.Wait(starting, "the program to be ready", ours.Ready)
}

// runBare is that controller.
func runBare(ctx context.Context, remote string) error {
	local, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	local.QPS = -1
	sets, err := dynamic.NewForConfig(local)
	if err != nil {
		return err
	}
	variable := func(name string) string { return os.Getenv(programs.Variable(remote, name)) }
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: variable("API_URL"), BearerTokenFile: variable("TOKEN_FILE"), TLSClientConfig: rest.TLSClientConfig{CAFile: variable("CA_FILE")},
		QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
	})
	if err != nil {
		return err
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = podLabel }))
	pods := factory.Core().V1().Pods().Informer()
	set := func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, fmt.Errorf("%T is not a pod", obj)
		}
		return []string{pod.Labels[podLabel]}, nil
	}
	changed := func(obj any) {
		if names, err := set(obj); err == nil {
			queue.Add(names[0])
		}
	}
	if err := pods.AddIndexers(cache.Indexers{podLabel: set}); err != nil {
		return err
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }}); err != nil {
		return err
	}
	resource := schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "globalnetworksets"}
	own := dynamicinformer.NewDynamicSharedInformerFactory(sets, 0)
	own.ForResource(resource).Informer()
	own.Start(ctx.Done())
	own.WaitForCacheSync(ctx.Done())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	patch := func(app string) error {
		members, err := pods.GetIndexer().ByIndex(podLabel, app)
		if err != nil {
			return err
		}
		var addrs []netip.Addr
		for _, obj := range members {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Status.PodIP != "" {
				addr, err := netip.ParseAddr(pod.Status.PodIP)
				if err != nil {
					return err
				}
				addrs = append(addrs, addr)
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		var nets []string
		for _, addr := range addrs {
			nets = append(nets, addr.String()+"/32")
		}
		data, err := json.Marshal(map[string]any{"spec": map[string]any{"nets": nets}})
		if err == nil {
			_, err = sets.Resource(resource).Patch(ctx, remote+"-"+podNamespace+"-"+app, types.MergePatchType, data, metav1.PatchOptions{})
		}
		return err
	}
	var workers sync.WaitGroup
	for range bareWorkers {
		workers.Go(func() {
			for app, over := queue.Get(); !over; app, over = queue.Get() {
				if err := patch(app); err != nil {
					queue.AddRateLimited(app)
				} else {
					queue.Forget(app)
				}
				queue.Done(app)
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	return nil
}
