package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

const (
	agents  = "semaphore-wireguard-remote-aws"
	mirrors = "semaphore-service-mirror-remote-aws"
)

func quiet() *cli.Session {
	return cli.NewSession(strings.NewReader(""), io.Discard, io.Discard, func(string) (string, bool) { return "", false })
}

// bindingOf returns an account's RoleBinding as in deploy/remote.
func bindingOf(name string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: cli.Namespace, UID: "b", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: cli.Namespace}},
	}
}

// accountOf returns an account as in deploy/remote.
func accountOf(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: cli.Namespace, UID: "a", Labels: map[string]string{"i": "j"}, Annotations: map[string]string{"k": "l"},
	}}
}

func labelled(s *corev1.Secret) *corev1.Secret {
	s.Labels, s.Annotations = map[string]string{"e": "f"}, map[string]string{"g": "h"}
	return s
}

// journal records the writes in gcp, with seconds since the start.
type journal struct {
	gcp, aws *cli.Cluster
	server   *fake.Clientset
	began    time.Time
	lines    []string
	// allowed is why the accounts may request tokens without their RoleBindings.
	allowed string
	// accepted is how long after the start tokens are accepted.
	accepted time.Duration
	// stop ends a run at a write.
	stop func(line string) bool
}

func newJournal(t *testing.T, objects ...runtime.Object) *journal {
	t.Helper()
	j := &journal{began: time.Now()}
	// The fake client gives no UID to an anchor that is created again, so its UID differs.
	j.gcp, j.aws = neighbours(kubetest.Certificate(t), func(account string) string { return token(account, "", time.Now().Add(30*24*time.Hour)) }, objects...)
	j.server = j.gcp.Client.(*fake.Clientset)
	j.server.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		line := action.GetVerb() + " " + action.GetResource().Resource
		switch a := action.(type) {
		case clienttesting.UpdateActionImpl:
			b := a.Object.(*rbacv1.RoleBinding)
			line += fmt.Sprintf(" %s of %d, marked %t", b.Name, len(b.Subjects), b.Annotations[revoking] != "")
		case clienttesting.CreateActionImpl:
			if named, is := a.Object.(metav1.Object); is {
				line += " " + named.GetName()
			}
		case clienttesting.DeleteActionImpl:
			line += " " + a.Name
		default:
			return false, nil, nil
		}
		if slices.Contains([]string{"localsubjectaccessreviews", "tokenreviews"}, action.GetResource().Resource) {
			return false, nil, nil
		}
		j.lines = append(j.lines, fmt.Sprintf("%d %s", time.Since(j.began)/time.Second, line))
		if j.stop != nil && j.stop(line) {
			return true, nil, errInterrupted
		}
		return false, nil, nil
	})
	j.server.PrependReactor("create", "localsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.LocalSubjectAccessReview)
		if got := review.Spec.User + " " + review.Spec.ResourceAttributes.Verb + " " + review.Spec.ResourceAttributes.Subresource; got !=
			"system:serviceaccount:sys-semaphore:"+review.Spec.ResourceAttributes.Name+" create token" {
			t.Errorf("asked whether %s", got)
		}
		review.Status.Allowed, review.Status.Reason = j.allowed != "", j.allowed
		return true, review, nil
	})
	j.server.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		review.Status.Authenticated = time.Since(j.began) < j.accepted
		return true, review, nil
	})
	return j
}

var errInterrupted = errors.New("interrupted")

// state describes an account in gcp: whether its RoleBinding is unchanged, and whether its
// Secret is the first one, a later one or missing.
func (j *journal) state(t *testing.T, name string) string {
	t.Helper()
	binding, err := j.gcp.Client.RbacV1().RoleBindings(cli.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	state := "taken"
	if cmp.Equal(binding, bindingOf(name)) {
		state = "as it was"
	} else if len(binding.Subjects) > 0 || binding.Annotations[revoking] == "" {
		state = "something else"
	}
	secret, err := j.gcp.Client.CoreV1().Secrets(cli.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return state + ", none"
	case err != nil:
		t.Fatal(err)
	case secret.UID == "u":
		return state + ", first"
	case secret.Labels["e"] == "f" && secret.Annotations["g"] == "h" && secret.Type == corev1.SecretTypeOpaque:
		return state + ", later"
	}
	return state + ", another"
}

// store stores a token of an account in aws.
func (j *journal) store(t *testing.T, tool, token string) {
	t.Helper()
	if err := store(t.Context(), quiet(), j.aws, "gcp", handed{tool, token, "ca"}); err != nil {
		t.Fatal(err)
	}
}

// TestRevoke checks the order: the right is withdrawn, then the Secret deleted; nothing is
// restored before the wait, which is the same for all accounts.
func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), labelled(secretOf(mirrors, corev1.SecretTypeOpaque, nil)),
			bindingOf(agents), bindingOf(mirrors), accountOf(agents), accountOf(mirrors))
		if err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(j.lines[0:2]) // Both at once.
		slices.Sort(j.lines[2:6])
		want := []string{
			"0 update rolebindings " + mirrors + " of 0, marked true", "0 update rolebindings " + agents + " of 0, marked true",
			"0 delete secrets " + mirrors, "0 delete secrets " + agents, "0 delete serviceaccounts " + mirrors, "0 delete serviceaccounts " + agents,
		}
		if diff := cmp.Diff(want, j.lines[:6]); diff != "" {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		slices.Sort(j.lines[6:])
		want = []string{
			"20 create secrets " + mirrors, "20 create secrets " + agents,
			"20 create serviceaccounts " + mirrors, "20 create serviceaccounts " + agents,
			"20 update rolebindings " + mirrors + " of 1, marked false", "20 update rolebindings " + agents + " of 1, marked false",
		}
		if diff := cmp.Diff(want, j.lines[6:]); diff != "" {
			t.Errorf("then (-want +got):\n%s", diff)
		}
		for _, name := range []string{agents, mirrors} {
			if got := j.state(t, name); got != "as it was, later" {
				t.Errorf("%s is %s", name, got)
			}
			// Tokens that are bound to nothing end with the account.
			next, err := j.gcp.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || next.UID == "a" || next.Labels["i"] != "j" || next.Annotations["k"] != "l" {
				t.Errorf("%s: the account is %v, %v", name, next, err)
			}
		}
		tools, _, err := Hand(t.Context(), quiet(), j.gcp, j.aws, All)
		if err != nil || len(tools) != 2 {
			t.Errorf("handed over %q: %v", tools, err)
		}
	})
}

// TestRevokeWaitsForTheToken lets an API server accept tokens for longer.
func TestRevokeWaitsForTheToken(t *testing.T) {
	for _, c := range []struct {
		accepted time.Duration
		token    string
		want     string
		after    time.Duration
	}{
		{30 * time.Second, token(agents, "u", time.Now().Add(time.Hour)), "", 30 * time.Second},
		{time.Hour, token(agents, "u", time.Now().Add(time.Hour)), "still accepts tokens of " + agents, 80 * time.Second},
		{time.Hour, token(agents, "v", time.Now().Add(time.Hour)), "", 20 * time.Second},
		{time.Hour, token(mirrors, "u", time.Now().Add(time.Hour)), "", 20 * time.Second},
		{time.Hour, "words", "", 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			j := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), bindingOf(agents))
			j.accepted = c.accepted
			j.store(t, "wireguard", c.token)
			err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			want := "as it was, later"
			if c.want != "" {
				want = "taken, none"
			}
			if got := j.state(t, agents); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if got := time.Since(j.began); got < c.after || got > c.after+time.Second {
				t.Errorf("it took %s, want %s", got, c.after)
			}
		})
	}
}

// TestRevokeInterrupted interrupts a run at each of its writes, and completes it with another
// one, which waits again.
func TestRevokeInterrupted(t *testing.T) {
	for _, at := range []struct{ line, state, hand string }{
		{"delete secrets", "taken, first", "was interrupted"},
		{"delete serviceaccounts", "taken, none", "was interrupted"},
		{"create serviceaccounts", "taken, none", "was interrupted"},
		{"create secrets", "taken, none", "was interrupted"},
		{"update rolebindings " + agents + " of 1", "taken, later", "was interrupted"},
	} {
		for name, again := range map[string]func(*testing.T, *journal) error{
			"revoke": func(t *testing.T, j *journal) error { return Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}) },
			"finish": func(t *testing.T, j *journal) error {
				return Finish(t.Context(), quiet(), []*cli.Cluster{j.aws, j.gcp})
			},
		} {
			t.Run(at.line+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), bindingOf(agents), accountOf(agents))
					j.store(t, "wireguard", token(agents, "u", time.Now().Add(time.Hour)))
					j.stop = func(line string) bool { return strings.HasPrefix(line, at.line) }
					err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}})
					if !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "run the command again to continue") {
						t.Errorf("error %v", err)
					}
					if got := j.state(t, agents); got != at.state {
						t.Errorf("left %s, want %s", got, at.state)
					}
					if _, _, err := Hand(t.Context(), quiet(), j.gcp, j.aws, All); err == nil || !strings.Contains(err.Error(), at.hand) {
						t.Errorf("handed over meanwhile: %v", err)
					}
					j.stop, j.lines, j.began = nil, nil, time.Now()
					if err := again(t, j); err != nil {
						t.Fatal(err)
					}
					if got := j.state(t, agents); got != "as it was, later" {
						t.Errorf("completed: %s", got)
					}
					if next, err := j.gcp.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(t.Context(), agents, metav1.GetOptions{}); err != nil || next.Labels["i"] != "j" {
						t.Errorf("completed: the account is %v, %v", next, err)
					}
					if back := j.lines[len(j.lines)-1]; back != "20 update rolebindings "+agents+" of 1, marked false" {
						t.Errorf("the right is given back without another wait: %q", j.lines)
					}
				})
			})
		}
	}
}

// TestRevokeCancelled cancels a run during its wait.
func TestRevokeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), bindingOf(agents))
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		if err := Revoke(ctx, quiet(), []Pair{{j.gcp, j.aws}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if got := j.state(t, agents); got != "taken, none" {
			t.Error(got)
		}
	})
}

// TestRevokeIsRefused checks the state after errors.
func TestRevokeIsRefused(t *testing.T) {
	other := bindingOf(agents)
	other.Subjects[0].Namespace = "elsewhere"
	for name, c := range map[string]struct {
		objects []runtime.Object
		allowed string
		restore func(t *testing.T, j *journal) // while it waits
		want    string                         // of the error
		state   string
	}{
		"another binding lets the account ask": {
			objects: []runtime.Object{bindingOf(agents)}, allowed: `RBAC: allowed by RoleBinding "mine/sys-semaphore"`,
			want: `may request tokens without the RoleBinding ` + agents + `; withdraw that right first: RBAC: allowed by RoleBinding "mine/sys-semaphore"`, state: "as it was, first",
		},
		"the Secret is restored meanwhile": {
			objects: []runtime.Object{bindingOf(agents)},
			restore: func(t *testing.T, j *journal) {
				if err := j.server.Tracker().Add(secretOf(agents, corev1.SecretTypeOpaque, nil)); err != nil {
					t.Error(err)
				}
			},
			want: "the Secret " + agents + " was restored meanwhile", state: "taken, first",
		},
		"the RoleBinding is restored meanwhile": {
			objects: []runtime.Object{bindingOf(agents)},
			restore: func(t *testing.T, j *journal) {
				if err := j.server.Tracker().Update(rbacv1.SchemeGroupVersion.WithResource("rolebindings"), bindingOf(agents), cli.Namespace); err != nil {
					t.Error(err)
				}
			},
			want: "the RoleBinding " + agents + " was restored meanwhile", state: "as it was, none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJournal(t, append(c.objects, secretOf(agents, corev1.SecretTypeOpaque, nil))...)
				j.allowed = c.allowed
				if c.restore != nil {
					go func() {
						time.Sleep(7 * time.Second)
						c.restore(t, j)
					}()
				}
				err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}})
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if got := j.state(t, agents); got != c.state {
					t.Errorf("%s, want %s", got, c.state)
				}
			})
		})
	}
	t.Run("the mark is on something else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			marked := func(name, role string) *rbacv1.RoleBinding {
				b := bindingOf(name)
				b.RoleRef.Name, b.Annotations = role, map[string]string{revoking: "{}"}
				return b
			}
			j := newJournal(t, marked(agents, "admin"), marked("mine", "mine"), secretOf("mine", corev1.SecretTypeOpaque, nil), secretOf(agents, corev1.SecretTypeOpaque, nil))
			if err := Finish(t.Context(), quiet(), []*cli.Cluster{j.gcp}); err != nil || len(j.lines) > 0 {
				t.Errorf("error %v, after %q", err, j.lines)
			}
		})
	})
	t.Run("nothing binds the account", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := newJournal(t, other, secretOf(agents, corev1.SecretTypeOpaque, nil))
			if err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"0 delete secrets " + agents, "20 create secrets " + agents}, j.lines); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	})
}

// TestRevokeMakesNoOtherAccount continues a revocation with a forged annotation.
func TestRevokeMakesNoOtherAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		binding := bindingOf(agents)
		binding.Subjects = nil
		binding.Annotations[revoking] = `{"account":{"metadata":{"name":"semaphore-tokens","namespace":"kube-system","finalizers":["x"],"ownerReferences":[{"name":"y"}]},"secrets":[{"name":"z"}]}}`
		j := newJournal(t, binding)
		if err := Finish(t.Context(), quiet(), []*cli.Cluster{j.aws, j.gcp}); err != nil {
			t.Fatal(err)
		}
		all, err := j.gcp.Client.CoreV1().ServiceAccounts(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			t.Fatalf("accounts %v, %v", all, err)
		}
		if a := all.Items[0]; a.Name != agents || a.Namespace != cli.Namespace || len(a.Finalizers)+len(a.OwnerReferences)+len(a.Secrets) > 0 {
			t.Errorf("account %v", a)
		}
	})
}

// TestRevokeLeavesNoneTaken revokes tokens of two clusters, one of which fails all
// deletions: the account of the other one is renewed.
func TestRevokeLeavesNoneTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gcp := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), bindingOf(agents), accountOf(agents))
		evil := newJournal(t, labelled(secretOf(agents, corev1.SecretTypeOpaque, nil)), bindingOf(agents), accountOf(agents))
		evil.stop = func(line string) bool { return strings.HasPrefix(line, "delete secrets") }
		err := Revoke(t.Context(), quiet(), []Pair{{evil.gcp, evil.aws}, {gcp.gcp, gcp.aws}})
		if !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "run the command again to continue") {
			t.Errorf("error %v", err)
		}
		if got := gcp.state(t, agents); got != "as it was, later" {
			t.Errorf("the account of the other cluster is %s", got)
		}
		if got := evil.state(t, agents); got != "taken, first" {
			t.Errorf("the account of the hostile one is %s", got)
		}
	})
}
