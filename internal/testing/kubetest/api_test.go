package kubetest_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// bubble runs a test with an API server and a client of its Services.
func bubble(t *testing.T, test func(ctx context.Context, t *testing.T, api *kubetest.API, services kube.Objects[*corev1.Service, *corev1.ServiceList])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		client, err := kube.NewClient(api.Config())
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		test(ctx, t, api, client.Services("ns"))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func service(name string, labels map[string]string) *corev1.Service {
	s := kubetest.Service(name, labels)
	s.Namespace = "ns"
	return s
}

// TestWatchesFollowSelectors streams a list and then shows objects enter and leave a selection.
func TestWatchesFollowSelectors(t *testing.T) {
	bubble(t, func(ctx context.Context, t *testing.T, api *kubetest.API, services kube.Objects[*corev1.Service, *corev1.ServiceList]) {
		in, out := map[string]string{"in": "true"}, map[string]string{}
		api.Put(t, "services", service("a", in))
		api.Put(t, "services", service("b", out))
		stream := true
		w, err := services.Watch(ctx, metav1.ListOptions{
			LabelSelector: "in=true", SendInitialEvents: &stream, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		must(t, err)
		defer w.Stop()
		next := func(want string) {
			t.Helper()
			e := <-w.ResultChan()
			got := string(e.Type)
			if s, is := e.Object.(*corev1.Service); is && e.Type != watch.Bookmark {
				got += " " + s.Name
			}
			if got != want {
				t.Errorf("event %s, want %s", got, want)
			}
		}
		next("ADDED a")
		next("BOOKMARK")
		api.Put(t, "services", service("b", in))
		next("ADDED b")
		api.Put(t, "services", service("a", out))
		next("DELETED a")
		api.Put(t, "services", service("a", out))
		api.Put(t, "services", service("b", in))
		next("MODIFIED b")
		api.Remove("services", "ns", "b")
		next("DELETED b")
	})
}

// TestWritesAreChecked holds preconditions, finalizers and patches that change nothing.
func TestWritesAreChecked(t *testing.T) {
	bubble(t, func(ctx context.Context, t *testing.T, api *kubetest.API, services kube.Objects[*corev1.Service, *corev1.ServiceList]) {
		made, err := services.Create(ctx, service("a", nil), metav1.CreateOptions{})
		must(t, err)
		if _, err := services.Create(ctx, service("a", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("created twice: %v", err)
		}
		patch := func(text string) *corev1.Service {
			t.Helper()
			s, err := services.Patch(ctx, "a", types.MergePatchType, []byte(text), metav1.PatchOptions{})
			must(t, err)
			return s
		}
		if same := patch(`{"spec":{"selector":{"app":"a"}}}`); same.ResourceVersion != made.ResourceVersion {
			t.Errorf("a patch that changes nothing makes version %s of %s", same.ResourceVersion, made.ResourceVersion)
		}
		now := patch(`{"metadata":{"finalizers":["example.org/slow"]}}`)
		if _, err := services.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("updated at an old version: %v", err)
		}
		if err := services.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &made.ResourceVersion}}); !apierrors.IsConflict(err) {
			t.Errorf("deleted at an old version: %v", err)
		}
		must(t, services.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &now.UID}}))
		got, err := services.Get(ctx, "a", metav1.GetOptions{})
		if must(t, err); got.DeletionTimestamp == nil {
			t.Error("not being deleted")
		}
		api.Hook(func(h *kubetest.Hooks) {
			h.Fail = func(kubetest.Request) *metav1.Status {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
		})
		if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("deleted in spite of the hook: %v", err)
		}
		want := []string{
			"create services a", "create services a", "patch services a", "patch services a",
			"update services a", "delete services a", "delete services a", "delete services a",
		}
		var requests []string
		for _, r := range api.Writes() {
			requests = append(requests, fmt.Sprint(r))
		}
		if diff := cmp.Diff(want, requests); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	})
}

// TestRestore goes back to a backup, and stops.
func TestRestore(t *testing.T) {
	bubble(t, func(ctx context.Context, t *testing.T, api *kubetest.API, services kube.Objects[*corev1.Service, *corev1.ServiceList]) {
		api.Put(t, "services", service("a", nil))
		backup := api.Save()
		api.Put(t, "services", service("b", nil))
		list, err := services.List(ctx, metav1.ListOptions{})
		must(t, err)
		w, err := services.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		must(t, err)
		api.Restore(backup)
		if e, open := <-w.ResultChan(); open {
			t.Errorf("the watch goes on with %v", e)
		}
		if _, err := services.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}); !apierrors.IsGone(err) && !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from a version before: %v", err)
		}
		if list, err := services.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("%v: %v, want the one of the backup", list, err)
		}
		api.Stop()
		if _, err := services.Get(ctx, "a", metav1.GetOptions{}); err == nil {
			t.Error("a server that stopped answers")
		}
		api.Start()
		_, err = services.Get(ctx, "a", metav1.GetOptions{})
		must(t, err)
	})
}
