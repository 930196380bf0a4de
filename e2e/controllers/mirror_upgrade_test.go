package controllers_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testUpgradeOfSliceNames starts with slices that have the names of an earlier version.
func (b *mirrorBed) testUpgradeOfSliceNames(t *testing.T) {
	web, api := svc("web", global), svc("api")
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.aws, "shop", api, slice(api, "api-1", "10.4.0.2")))
	i := b.start(t, nil)
	b.quiet(t, i)
	i.stop()
	names := map[string]string{globalName: "10.4.0.1", "aws-shop-73736d-api": "10.4.0.2"}
	client := b.gcp.Client().DiscoveryV1().EndpointSlices(home)
	var old []string
	for name := range names {
		for i, sl := range b.slices(t, name) {
			before := sl.DeepCopy()
			before.ObjectMeta = metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-0a1b2c3d4%d", name, i), Labels: sl.Labels, Annotations: sl.Annotations,
			}
			_, err := client.Create(t.Context(), before, metav1.CreateOptions{})
			must(t, err)
			must(t, client.Delete(t.Context(), sl.Name, metav1.DeleteOptions{}))
			old = append(old, before.Name)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{})
	must(t, err)
	gap := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// By service and slice.
		there := map[string]map[string]bool{}
		for event := range w.ResultChan() {
			sl, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			service := sl.Labels[discoveryv1.LabelServiceName]
			if there[service] == nil {
				there[service] = map[string]bool{}
			}
			has := event.Type != "DELETED" && slices.ContainsFunc(sl.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(e.Addresses, names[service])
			})
			if there[service][sl.Name] = has; has {
				continue
			}
			if !slices.Contains(slices.Collect(maps.Values(there[service])), true) {
				select {
				case gap <- service:
				default:
				}
			}
		}
	}()
	i = b.start(t, nil)
	b.settled(t, i)
	for name, address := range names {
		b.leadsTo(t, name, address)
		for _, sl := range b.slices(t, name) {
			if slices.Contains(old, sl.Name) {
				t.Errorf("slice %s is left", sl.Name)
			}
		}
	}
	cancel()
	<-done
	select {
	case service := <-gap:
		t.Errorf("%s was without its endpoint for some time", service)
	default:
	}
}
