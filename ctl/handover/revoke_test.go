package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

const (
	agents  = "semaphore-wireguard-remote-aws"
	mirrors = "semaphore-service-mirror-remote-aws"
)

func quiet() *cli.Session {
	return cli.NewSession(strings.NewReader(""), io.Discard, io.Discard)
}

// accountOf returns an account as in deploy/remote.
func accountOf(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: cli.Namespace, UID: "a", Labels: map[string]string{"i": "j"}, Annotations: map[string]string{"k": "l"},
	}}
}

// journal records the writes in gcp, with seconds since the start.
type journal struct {
	gcp, aws *cli.Cluster
	server   *fake.Clientset
	began    time.Time
	lines    []string
	// accepted is how long after the start tokens are accepted.
	accepted time.Duration
	// stop ends a run at a write.
	stop func(line string) bool
}

func newJournal(t *testing.T, objects ...runtime.Object) *journal {
	t.Helper()
	j := &journal{began: time.Now()}
	// The fake client gives no UID to an account that is created again, so its UID differs.
	j.gcp, j.aws = neighbours(kubetest.Certificate(t), func(account string) string { return token(account, "", time.Now().Add(30*24*time.Hour)) }, objects...)
	j.server = j.gcp.Client.(*fake.Clientset)
	j.server.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		line := action.GetVerb() + " " + action.GetResource().Resource
		switch a := action.(type) {
		case clienttesting.CreateActionImpl:
			if named, is := a.Object.(metav1.Object); is {
				line += " " + named.GetName()
			}
		case clienttesting.DeleteActionImpl:
			line += " " + a.Name
		default:
			return false, nil, nil
		}
		if action.GetResource().Resource == "tokenreviews" || action.GetSubresource() == "token" {
			return false, nil, nil
		}
		j.lines = append(j.lines, fmt.Sprintf("%d %s", time.Since(j.began)/time.Second, line))
		if j.stop != nil && j.stop(line) {
			return true, nil, errInterrupted
		}
		return false, nil, nil
	})
	j.server.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		review.Status.Authenticated = time.Since(j.began) < j.accepted
		return true, review, nil
	})
	return j
}

var errInterrupted = errors.New("interrupted")

// state describes an account in gcp: the first one, a later one or none.
func (j *journal) state(t *testing.T, name string) string {
	t.Helper()
	account, err := j.gcp.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "none"
	case err != nil:
		t.Fatal(err)
	case account.UID == "a":
		return "first"
	case account.Labels["i"] == "j" && (account.Annotations["k"] == "l" || account.Annotations == nil):
		return "later"
	}
	return "another"
}

// store stores a token of an account in aws.
func (j *journal) store(t *testing.T, tool, token string) {
	t.Helper()
	if err := store(t.Context(), j.aws, "gcp", handed{tool, token, "ca"}); err != nil {
		t.Fatal(err)
	}
}

func secretFor(name string) *corev1.Secret {
	s := secretOf(name, corev1.SecretTypeOpaque, nil)
	s.Labels = map[string]string{"i": "j"}
	return s
}

// An account that an interrupted run has deleted is of the release again, or the next join would refuse
// it as another's.
func TestRestoredAccountsAreOfTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		anchor := secretFor(agents)
		anchor.Labels = map[string]string{manifests.ManagedLabel: "Helm"}
		anchor.Annotations = map[string]string{"meta.helm.sh/release-name": manifests.Release, "meta.helm.sh/release-namespace": cli.Namespace, "k": "l"}
		j := newJournal(t, anchor)
		if err := Restore(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); err != nil {
			t.Fatal(err)
		}
		account, err := j.gcp.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(t.Context(), agents, metav1.GetOptions{})
		if err != nil || !manifests.Ours(account) || len(account.Annotations) != 2 {
			t.Errorf("restored %+v, error %v", account, err)
		}
	})
}

// TestRevoke checks the order: no account is created before the wait, which is the same for all.
func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(t, secretFor(agents), secretFor(mirrors), accountOf(agents), accountOf(mirrors))
		if err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(j.lines)
		want := []string{
			"0 delete serviceaccounts " + mirrors, "0 delete serviceaccounts " + agents,
			"20 create serviceaccounts " + mirrors, "20 create serviceaccounts " + agents,
		}
		if diff := cmp.Diff(want, j.lines); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, name := range []string{agents, mirrors} {
			if got := j.state(t, name); got != "later" {
				t.Errorf("%s is %s", name, got)
			}
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
		{time.Hour, tokenOf(agents, "b", "u", time.Now().Add(time.Hour)), "", 20 * time.Second},
		{time.Hour, token(mirrors, "u", time.Now().Add(time.Hour)), "", 20 * time.Second},
		{time.Hour, "words", "", 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			j := newJournal(t, secretFor(agents), accountOf(agents))
			j.accepted = c.accepted
			j.store(t, "wireguard", c.token)
			err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}})
			want := "later"
			if c.want != "" {
				want = "none"
			}
			if !says(err, c.want) || j.state(t, agents) != want {
				t.Errorf("error %v, want %q; %s, want %s", err, c.want, j.state(t, agents), want)
			}
			if got := time.Since(j.began); got < c.after || got > c.after+time.Second {
				t.Errorf("it took %s, want %s", got, c.after)
			}
		})
	}
}

// says reports whether an error contains words; no words: whether it is nil.
func says(err error, words string) bool {
	return err == nil && words == "" || err != nil && words != "" && strings.Contains(err.Error(), words)
}

// TestRevokeInterrupted interrupts a run at each of its writes and in its wait, and completes it
// with another one, which waits again.
func TestRevokeInterrupted(t *testing.T) {
	for _, at := range []struct{ line, state string }{
		{"delete serviceaccounts", "first"},
		{"create serviceaccounts", "none"},
		{"", "none"},
	} {
		for name, again := range map[string]func(context.Context, *cli.Session, []Pair) error{"revoke": Revoke, "restore": Restore} {
			t.Run(at.line+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := newJournal(t, secretFor(agents), accountOf(agents))
					j.store(t, "wireguard", token(agents, "u", time.Now().Add(time.Hour)))
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					if at.line == "" {
						time.AfterFunc(12*time.Second, func() { cancel(errInterrupted) })
					} else {
						j.stop = func(line string) bool { return strings.HasPrefix(line, at.line) }
					}
					err := Revoke(ctx, quiet(), []Pair{{j.gcp, j.aws}})
					if !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "run the command again to continue") {
						t.Errorf("error %v", err)
					}
					if got := j.state(t, agents); got != at.state {
						t.Errorf("left %s, want %s", got, at.state)
					}
					j.stop, j.lines, j.began = nil, nil, time.Now()
					if err := again(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); err != nil {
						t.Fatal(err)
					}
					if name == "restore" && at.state == "first" {
						if len(j.lines) > 0 {
							t.Errorf("restored an account that exists: %q", j.lines)
						}
						return
					}
					if back := j.lines[len(j.lines)-1]; j.state(t, agents) != "later" || back != "20 create serviceaccounts "+agents {
						t.Errorf("completed: %s, without another wait: %q", j.state(t, agents), j.lines)
					}
				})
			})
		}
	}
}

// TestRevokeIsRefused checks the state after errors.
func TestRevokeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		secret  *corev1.Secret
		restore time.Duration // when another client creates the account
		want    string        // of the error
		state   string
	}{
		"restored at once":        {secretFor(agents), 100 * time.Millisecond, "the ServiceAccount " + agents + " was restored meanwhile: suspend the program", "another"},
		"restored in the wait":    {secretFor(agents), 7 * time.Second, "the ServiceAccount " + agents + " was restored meanwhile: suspend the program", "another"},
		"a token without an end":  {secretOf(agents, corev1.SecretTypeServiceAccountToken, nil), 0, "its token never expires", "first"},
		"a Secret with something": {secretOf(agents, corev1.SecretTypeOpaque, map[string][]byte{"a": nil}), 0, "it isn't as in deploy/remote", "first"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJournal(t, c.secret, accountOf(agents))
				if c.restore > 0 {
					go func() {
						time.Sleep(c.restore)
						other := accountOf(agents)
						other.UID, other.Labels = "o", nil
						if err := j.server.Tracker().Add(other); err != nil {
							t.Error(err)
						}
					}()
				}
				if err := Revoke(t.Context(), quiet(), []Pair{{j.gcp, j.aws}}); !says(err, c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if got := j.state(t, agents); got != c.state {
					t.Errorf("%s, want %s", got, c.state)
				}
			})
		})
	}
}

// TestRevokeLeavesNoneDeleted revokes tokens of two clusters, one of which fails all deletions:
// the account of the other one is created again.
func TestRevokeLeavesNoneDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gcp := newJournal(t, secretFor(agents), accountOf(agents))
		evil := newJournal(t, secretFor(agents), accountOf(agents))
		evil.stop = func(line string) bool { return strings.HasPrefix(line, "delete") }
		err := Revoke(t.Context(), quiet(), []Pair{{evil.gcp, evil.aws}, {gcp.gcp, gcp.aws}})
		if !errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "run the command again to continue") {
			t.Errorf("error %v", err)
		}
		if got := gcp.state(t, agents) + ", " + evil.state(t, agents); got != "later, first" {
			t.Error(got)
		}
	})
}
