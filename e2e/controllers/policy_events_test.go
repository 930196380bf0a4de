package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// messages waits until the Events about a pod have these messages, in any order.
func messages(t *testing.T, c *testbed.Cluster, pod string, want ...string) {
	t.Helper()
	slices.Sort(want)
	wait(t, "the Events", func() error {
		var got []string
		for _, e := range eventsAbout(t, c, pod) {
			got = append(got, e.Message)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		return nil
	})
}

// testEvents creates objects with the names of network sets, and expects Events about that.
// The next leader doesn't repeat them.
func (b *policyBed) testEvents(t *testing.T) {
	const pod = "semaphore-policy-0"
	sets := b.sets(t, b.aws)
	foreign := func(name string) {
		t.Helper()
		_, err := sets.Create(t.Context(), &calico.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	// The admission policies insist on a token that is bound to the pod.
	object, err := b.aws.Client().CoreV1().Pods("sys-semaphore").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod},
		Spec:       corev1.PodSpec{ServiceAccountName: "semaphore-policy", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	account, err := b.aws.Credentials(t.Context(), "sys-semaphore", "semaphore-policy")
	must(t, err)
	must(t, account.RotateFor(t.Context(), authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: object.UID},
	}))
	start := func() *policyInstance {
		t.Helper()
		client, err := kube.NewClient(as(b.aws, account))
		must(t, err)
		return b.start(t, b.aws, func(cfg *policy.Config) {
			cfg.Events = event.NewRecorder(event.Config{Client: client, Component: programs.Policy, About: event.Pod("sys-semaphore", pod, string(object.UID))})
		}, b.merit)
	}
	named := func(set string) string {
		t.Helper()
		var name string
		wait(t, "the object of "+set, func() error {
			list, err := sets.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range list.Items {
				l := list.Items[i].Labels
				if l[domain+"/cluster"]+"/"+l[domain+"/namespace"]+"/"+l[domain+"/name"] == set {
					name = list.Items[i].Name
					return nil
				}
			}
			return fmt.Errorf("none of %d", len(list.Items))
		})
		return name
	}

	foreign("merit-shop-web")
	putPods(t, b.merit, running("shop", "web", "web", "10.6.0.1"), running("a", "x", "b-c", "10.6.0.2"))
	i := start()
	named("merit/a/b-c") // first come, first served
	putPods(t, b.merit, running("a-b", "x", "c", "10.6.0.3"))
	web := fmt.Sprintf("the network set of merit/shop/web is %s: an object that isn't ours has the name merit-shop-web", named("merit/shop/web"))
	c := fmt.Sprintf("the network set of merit/a-b/c is %s: merit/a/b-c has the name merit-a-b-c", named("merit/a-b/c"))
	messages(t, b.aws, pod, web, c)

	i.stop()
	foreign("merit-zoo-web")
	putPods(t, b.merit, running("zoo", "web", "web", "10.6.0.4"))
	start()
	zoo := fmt.Sprintf("the network set of merit/zoo/web is %s: an object that isn't ours has the name merit-zoo-web", named("merit/zoo/web"))
	messages(t, b.aws, pod, web, c, zoo)
}
