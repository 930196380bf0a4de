package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// sent is a received request.
type sent struct {
	Method, URL, Body string
	Header            http.Header
}

// recording is an API server that records requests and refuses them, in one format.
type recording struct {
	*httptest.Server
	mu   sync.Mutex
	sent []sent
}

func newRecording(t *testing.T, contentType string, refusal []byte) *recording {
	t.Helper()
	r := &recording{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.sent = append(r.sent, sent{request.Method, request.URL.String(), string(body), request.Header})
		r.mu.Unlock()
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write(refusal)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *recording) take() []sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.sent
	r.sent = nil
	return taken
}

// refusal is a conflict response in JSON or protobuf.
func refusal(t *testing.T) map[string][]byte {
	t.Helper()
	status := apierrors.NewConflict(corev1.Resource("nodes"), "a", errors.New("changed meanwhile")).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	inProtobuf, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), &status)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		typeProtobuf: inProtobuf,
		typeJSON:     []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"changed meanwhile","reason":"Conflict","details":{"name":"a","kind":"nodes"},"code":409}`),
	}
}

// verbs makes all requests of a kind, and returns the errors.
func verbs[T interface {
	runtime.Object
	SetName(name string)
}, L runtime.Object](ctx context.Context, to Objects[T, L], object T) []error {
	object.SetName("a")
	seconds, grace := int64(7), int64(1)
	list := metav1.ListOptions{
		LabelSelector: "a=b,c", FieldSelector: "metadata.name=a", ResourceVersion: "12", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		Limit: 500, Continue: "next", TimeoutSeconds: &seconds,
	}
	streamed := metav1.ListOptions{
		AllowWatchBookmarks: true, SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, TimeoutSeconds: &seconds,
	}
	uid := types.UID("u")
	var errs [10]error
	_, errs[0] = to.Get(ctx, "a", metav1.GetOptions{})
	_, errs[1] = to.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "0"})
	_, errs[2] = to.List(ctx, list)
	_, errs[3] = to.Watch(ctx, list)
	_, errs[4] = to.Watch(ctx, streamed)
	_, errs[5] = to.Create(ctx, object, metav1.CreateOptions{FieldManager: "m", FieldValidation: "Strict", DryRun: []string{"All"}})
	_, errs[6] = to.Update(ctx, object, metav1.UpdateOptions{FieldManager: "m"})
	_, errs[7] = to.Patch(ctx, "a", types.MergePatchType, []byte(`{"a":1}`), metav1.PatchOptions{FieldManager: "m"}, "status")
	_, errs[8] = to.Patch(ctx, "a", types.ApplyPatchType, []byte(`{}`), metav1.PatchOptions{FieldManager: "m", Force: new(true)})
	errs[9] = to.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}})
	return errs[:]
}

// TestClientsSendTheSame compares the requests of our client with those of client-go's
// clientset byte by byte, and the errors in both formats.
func TestClientsSendTheSame(t *testing.T) {
	t.Parallel()
	for contentType, refused := range refusal(t) {
		for name, content := range map[string]rest.ContentConfig{
			"not configured":         {},
			"as access says":         {AcceptContentTypes: typeProtobuf + "," + typeJSON},
			"writes in protobuf too": {AcceptContentTypes: typeProtobuf + "," + typeJSON, ContentType: typeProtobuf},
			"JSON":                   {ContentType: typeJSON},
		} {
			t.Run(name+" answered in "+contentType, func(t *testing.T) {
				t.Parallel()
				server := newRecording(t, contentType, refused)
				cfg := &rest.Config{Host: server.URL, ContentConfig: content, BearerToken: "t", UserAgent: "test/1", QPS: -1}
				theirs, err := kubernetes.NewForConfig(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ours, err := NewClient(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
				review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}
				access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "x"}}
				compare := func(of string, errs []error, err ...error) {
					t.Helper()
					made := server.take()
					if len(made) == 0 || len(made)%2 != 0 {
						t.Fatalf("%s: %d requests", of, len(made))
					}
					if diff := cmp.Diff(made[:len(made)/2], made[len(made)/2:]); diff != "" {
						t.Errorf("%s (-client-go's +ours):\n%s", of, diff)
					}
					for i, err := range append(errs, err...) {
						var status apierrors.APIStatus
						if !errors.As(err, &status) || !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "changed meanwhile") || status.Status().Details.Name != "a" {
							t.Errorf("%s: request %d ends with %v, want the server's conflict", of, i, err)
						}
					}
				}
				compare("slices", verbs(ctx, theirs.DiscoveryV1().EndpointSlices("n"), &discoveryv1.EndpointSlice{}), verbs(ctx, ours.EndpointSlices("n"), &discoveryv1.EndpointSlice{})...)
				compare("events", verbs(ctx, theirs.CoreV1().Events("n"), &corev1.Event{}), verbs(ctx, ours.Events("n"), &corev1.Event{})...)
				compare("leases", verbs(ctx, theirs.CoordinationV1().Leases("n"), &coordinationv1.Lease{}), verbs(ctx, ours.Leases("n"), &coordinationv1.Lease{})...)
				compare("nodes", verbs(ctx, theirs.CoreV1().Nodes(), &corev1.Node{}), verbs(ctx, ours.Nodes(), &corev1.Node{})...)
				compare("pods", verbs(ctx, theirs.CoreV1().Pods("n"), pod), verbs(ctx, ours.Pods("n"), pod)...)
				compare("pods of all namespaces", verbs(ctx, theirs.CoreV1().Pods(""), pod), verbs(ctx, ours.Pods(""), pod)...)
				compare("secrets", verbs(ctx, theirs.CoreV1().Secrets("n"), &corev1.Secret{}), verbs(ctx, ours.Secrets("n"), &corev1.Secret{})...)
				compare("ranges of services", verbs(ctx, theirs.NetworkingV1().ServiceCIDRs(), &networkingv1.ServiceCIDR{}), verbs(ctx, ours.ServiceCIDRs(), &networkingv1.ServiceCIDR{})...)
				compare("services", verbs(ctx, theirs.CoreV1().Services("n"), &corev1.Service{}), verbs(ctx, ours.Services("n"), &corev1.Service{})...)

				var errs [4]error
				_, errs[0] = theirs.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
				_, errs[1] = ours.TokenReviews().Create(ctx, review, metav1.CreateOptions{})
				compare("token reviews", errs[:2])
				_, errs[2] = theirs.AuthorizationV1().SubjectAccessReviews().Create(ctx, access, metav1.CreateOptions{})
				_, errs[3] = ours.SubjectAccessReviews().Create(ctx, access, metav1.CreateOptions{})
				compare("access reviews", errs[2:])
				_, errs[0] = theirs.CoreV1().RESTClient().Get().AbsPath("/version").MaxRetries(0).Stream(ctx)
				_, errs[1] = ours.REST().Get().AbsPath("/version").MaxRetries(0).Stream(ctx)
				compare("version", errs[:2])
			})
		}
	}
}

// TestClientReadsWhatItWatches serves all types of events, in both formats.
func TestClientReadsWhatItWatches(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7"}}
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired}
	want := []watch.Event{{Type: watch.Added, Object: node}, {Type: watch.Bookmark, Object: node}, {Type: watch.Error, Object: gone}}
	for _, info := range scheme.Codecs.SupportedMediaTypes() {
		if info.StreamSerializer == nil {
			continue
		}
		t.Run(info.MediaType, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", info.MediaType+";stream=watch")
				to := info.StreamSerializer.NewFrameWriter(w)
				for _, event := range want {
					object, err := runtime.Encode(info.Serializer, event.Object)
					if err == nil {
						err = info.StreamSerializer.Encode(&metav1.WatchEvent{Type: string(event.Type), Object: runtime.RawExtension{Raw: object}}, to)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}))
			t.Cleanup(server.Close)
			client, err := NewClient(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{AcceptContentTypes: info.MediaType}})
			if err != nil {
				t.Fatal(err)
			}
			w, err := client.Nodes().Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			for _, event := range want {
				got := <-w.ResultChan()
				if reflect.TypeOf(got.Object) != reflect.TypeOf(event.Object) || got.Type != event.Type {
					t.Fatalf("event %v of %T, want %v of %T", got.Type, got.Object, event.Type, event.Object)
				}
				got.Object.GetObjectKind().SetGroupVersionKind(event.Object.GetObjectKind().GroupVersionKind())
				if diff := cmp.Diff(event.Object, got.Object); diff != "" {
					t.Errorf("%v (-want +got):\n%s", event.Type, diff)
				}
			}
		})
	}
}
