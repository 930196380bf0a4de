package handover

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestImmutable changes the credentials of one neighbour in an immutable Secret, and keeps
// those of the other one.
func TestImmutable(t *testing.T) {
	fixed := true
	have := secretOf("semaphore-wireguard-remotes", corev1.SecretTypeOpaque, map[string][]byte{
		"merit.token": []byte("m"), "gcp.token": []byte("before"), "gcp.ca.crt": []byte("before"),
	})
	have.Immutable, have.ResourceVersion = &fixed, "7"
	for name, c := range map[string]struct {
		do   func(*testing.T, *cli.Session, *cli.Cluster) error
		want map[string]string
	}{
		"handed over": {func(t *testing.T, s *cli.Session, aws *cli.Cluster) error {
			return store(t.Context(), s, aws, "gcp", handed{"wireguard", "now", "ca"})
		}, map[string]string{
			"semaphore-wireguard-remotes merit.token": "m", "semaphore-wireguard-remotes gcp.token": "now", "semaphore-wireguard-remotes gcp.ca.crt": "ca",
		}},
		"forgotten": {func(t *testing.T, s *cli.Session, aws *cli.Cluster) error { return Forget(t.Context(), s, aws, "gcp") },
			map[string]string{"semaphore-wireguard-remotes merit.token": "m"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := fake.NewClientset(have.DeepCopy())
			server.PrependReactor("patch", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
				name := action.(clienttesting.PatchAction).GetName()
				found, err := server.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), cli.Namespace, name)
				if err != nil || found.(*corev1.Secret).Immutable == nil {
					return false, nil, nil
				}
				return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Secret").GroupKind(), name, nil)
			})
			server.PrependReactor("delete", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if p := action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions; p == nil || *p.UID != "u" || *p.ResourceVersion != "7" {
					t.Errorf("it is deleted without preconditions: %v", p)
				}
				return false, nil, nil
			})
			var said strings.Builder
			session := quiet()
			session.Err = &said
			aws := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "prod"}, Client: server, Config: &rest.Config{}}
			if err := c.do(t, session, aws); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, stored(t, aws)); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			now, err := server.CoreV1().Secrets(cli.Namespace).Get(t.Context(), have.Name, metav1.GetOptions{})
			if err != nil || now.Immutable != nil || now.UID == have.UID || !cmp.Equal(now.Labels, have.Labels) || !cmp.Equal(now.Annotations, have.Annotations) {
				text, _ := json.Marshal(now.ObjectMeta)
				t.Errorf("it is %s, %v", text, err)
			}
			if !strings.Contains(said.String(), "kubectl --context prod -n sys-semaphore rollout restart daemonset/semaphore-wireguard") {
				t.Errorf("printed %q", said.String())
			}
		})
	}
}
