package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// publishAuthority publishes the CA of the API server like the controller manager.
func publishAuthority(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	ca, err := os.ReadFile(c.CAFile())
	must(t, err)
	_, err = c.Client().CoreV1().ConfigMaps(systemNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(ca)},
	}, metav1.CreateOptions{})
	must(t, err)
}

// issueTokens fills Secrets for tokens of accounts like the controller manager.
func issueTokens(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	ca, err := os.ReadFile(c.CAFile())
	must(t, err)
	core := c.Client().CoreV1()
	secrets, err := core.Secrets(systemNamespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		if secret.Type != corev1.SecretTypeServiceAccountToken {
			continue
		}
		account := secret.Annotations[corev1.ServiceAccountNameKey]
		token, err := core.ServiceAccounts(systemNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID,
			}},
		}, metav1.CreateOptions{})
		must(t, err)
		secret.Data = map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": ca, "namespace": []byte(systemNamespace)}
		_, err = core.Secrets(systemNamespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		must(t, err)
	}
}

// handOver hands over tokens of one cluster to another one.
func (e *example) handOver(t *testing.T, from, to string) {
	t.Helper()
	out, err := e.shell(t, "hand-over-"+from, "semaphorectl tokens --from "+from+" "+from+" "+to)
	if err != nil {
		t.Fatalf("semaphorectl tokens: %v\n%s", err, out)
	}
	for line := range strings.Lines(out) { // Of all that were handed over so.
		if !strings.HasSuffix(line, to+" has new tokens for "+from+": wireguard, mirror, policy\n") {
			t.Errorf("semaphorectl tokens prints %q", line)
		}
	}
}

// renew runs semaphore-tokens as the CronJob does, with more arguments, and returns
// how it ended.
func (e *example) renew(t *testing.T, c *testbed.Cluster, name string, args ...string) error {
	t.Helper()
	job, err := c.Client().BatchV1().CronJobs(systemNamespace).Get(t.Context(), "semaphore-tokens", metav1.GetOptions{})
	must(t, err)
	template := job.Spec.JobTemplate.Spec.Template.DeepCopy()
	template.Spec.Containers[0].Args = args
	pod := e.kubelet(c, 0).run(t, name, template)
	select {
	case <-pod.Done():
	case <-within(t, time.Minute).Done():
		pod.Kill()
	}
	if strings.Contains(pod.Log(), "eyJ") {
		t.Error("a token is in the log")
	}
	if pod.Err() != nil {
		return fmt.Errorf("%w\n%s", pod.Err(), pod.Tail(10))
	}
	return nil
}

// handed returns a cluster's tokens of another one, by Secret.
func (e *example) handed(t *testing.T, c *testbed.Cluster, from string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range tokens.Secrets() {
		secret, err := c.Client().CoreV1().Secrets(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if found[name] = string(secret.Data[from+".token"]); found[name] == "" {
			t.Fatalf("%s has no token of %s", name, from)
		}
	}
	return found
}

// startTokens starts the clusters of the example, with one node each and nothing
// running, after the hand-over of gcp to aws.
func startTokens(t *testing.T) *example {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{})
	e := &example{testbed: tb, folder: filepath.Join(deployFolder(t), "example")}
	clusters, err := tb.StartClusters(within(t, 3*time.Minute), testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	must(t, err)
	e.clusters = [2]*testbed.Cluster(clusters)
	for _, c := range e.clusters {
		e.kubectl(t, c, "apply", "-k", filepath.Join(e.folder, c.Name))
		publishAuthority(t, c)
		_, err := c.AddNode(t.Context(), testbed.NodeConfig{})
		must(t, err)
	}
	e.handOver(t, "gcp", "aws")
	return e
}

// works reports whether an API server accepts a token: agents' tokens list nodes.
func works(ctx context.Context, t *testing.T, c *testbed.Cluster, token string) error {
	t.Helper()
	_, err := clientWith(t, c, token).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	return err
}

// revoked waits until an API server, which caches tokens for some seconds, refuses one.
func revoked(t *testing.T, c *testbed.Cluster, what, token string) {
	t.Helper()
	eventually(t, time.Minute, what+" to be refused", func(ctx context.Context) error {
		if err := works(ctx, t, c, token); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it isn't: %w", err)
		}
		return nil
	})
}

// TestTokens hands over tokens between two API servers, renews and revokes them.
func TestTokens(t *testing.T) {
	t.Parallel()
	e := startTokens(t)
	aws, gcp := e.clusters[0], e.clusters[1]
	const agents, account = "semaphore-wireguard-remotes", "semaphore-wireguard-remote-aws"
	first := e.handed(t, aws, "gcp")
	anchor := func() types.UID {
		secret, err := gcp.Client().CoreV1().Secrets(systemNamespace).Get(t.Context(), account, metav1.GetOptions{})
		must(t, err)
		return secret.UID
	}
	claims, err := tokens.Parse(first[agents])
	must(t, err)
	t.Run("a token is bound, and expires", func(t *testing.T) {
		if got := claims.Expires.Sub(claims.Issued); got != 30*24*time.Hour {
			t.Errorf("it lasts %s", got)
		}
		if claims.Account != account || claims.Secret.Name != account || claims.Secret.UID != anchor() {
			t.Errorf("it says %+v", claims)
		}
		must(t, works(t.Context(), t, gcp, first[agents]))
	})
	t.Run("one that isn't due stays", func(t *testing.T) {
		must(t, e.renew(t, aws, "tokens"))
		if got := e.handed(t, aws, "gcp"); !maps.Equal(got, first) {
			t.Error("it was renewed")
		}
	})
	t.Run("a neighbour asks for no other token", func(t *testing.T) { e.asksForNoOther(t, first[agents]) })
	t.Run("the account that renews may do nothing else", e.renewsOnly)
	var renewed map[string]string
	t.Run("renewed with its own rights", func(t *testing.T) {
		eventually(t, time.Minute, "a second to pass, which is what tokens count", func(context.Context) error {
			if time.Since(claims.Issued) < 2*time.Second {
				return errors.New("it has just been issued")
			}
			return nil
		})
		must(t, e.renew(t, aws, "tokens-all", "-all"))
		renewed = e.handed(t, aws, "gcp")
		for name := range renewed {
			if renewed[name] == first[name] {
				t.Errorf("%s is not renewed", name)
			}
		}
		must(t, works(t.Context(), t, gcp, renewed[agents]))
		next, err := tokens.Parse(renewed[agents])
		must(t, err)
		if next.Secret.UID != anchor() || !next.Expires.After(claims.Expires) {
			t.Errorf("it says %+v, after %+v", next, claims)
		}
	})
	t.Run("revoked, with all that came of it", func(t *testing.T) {
		// The policy requires the Secret's UID, which a thief doesn't know. Without that
		// policy, as with manifests of an earlier release, the tool alone has to prevent it.
		must(t, gcp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().
			Delete(t.Context(), "semaphore-remote-tokens-aws", metav1.DeleteOptions{}))
		// And a thief may have got one that is bound to nothing, and outlives its Secret.
		var unbound string
		eventually(t, time.Minute, "a token that is bound to nothing", func(ctx context.Context) (err error) {
			spec := boundTo(account)
			spec.BoundObjectRef = nil
			unbound, err = askFor(ctx, t, gcp, renewed[agents], account, spec)
			return err
		})
		must(t, works(t.Context(), t, gcp, unbound))
		stop := steal(t, gcp, renewed[agents], account) // asksForNoOther has granted it every token.
		_, err := gcp.Client().CoreV1().Secrets(systemNamespace).Patch(t.Context(), account, types.MergePatchType, []byte(`{"immutable":true}`), metav1.PatchOptions{})
		must(t, err)
		_, err = aws.Client().CoreV1().Secrets(systemNamespace).Patch(t.Context(), agents, types.MergePatchType,
			[]byte(`{"stringData":{"merit.token":"another"}}`), metav1.PatchOptions{})
		must(t, err)
		if out, err := e.shell(t, "interrupted", "timeout -s INT 6 semaphorectl tokens --revoke --from gcp aws gcp"); err == nil || !strings.Contains(out, "run the command again to continue") {
			t.Errorf("interrupted: %v\n%s", err, out)
		}
		out, err := e.shell(t, "continued", "semaphorectl tokens --from gcp aws gcp")
		if err != nil || !strings.Contains(out, "continuing the revocation") {
			t.Fatalf("%v\n%s", err, out)
		}
		had, err := aws.Client().CoreV1().Secrets(systemNamespace).Get(t.Context(), agents, metav1.GetOptions{})
		must(t, err)
		if string(had.Data["merit.token"]) != "another" {
			t.Errorf("the token of another neighbour is lost, of %d keys\n%s", len(had.Data), out)
		}
		stolen := stop()
		if len(stolen) == 0 {
			t.Error("the thief had no token at all")
		}
		revoked(t, gcp, "the first token", first[agents])
		revoked(t, gcp, "the renewed token", renewed[agents])
		revoked(t, gcp, "the token that is bound to nothing", unbound)
		eventually(t, time.Minute, "the new token to work", func(ctx context.Context) error {
			return works(ctx, t, gcp, e.handed(t, aws, "gcp")[agents])
		})
		_, err = askFor(t.Context(), t, gcp, renewed[agents], account, boundTo(account))
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("a revoked token asks for another one: %v", err)
		}
		for uid, token := range stolen {
			t.Logf("the thief had a token that is bound to %s; the Secret is %s", uid, anchor())
			revoked(t, gcp, "the thief's token", token)
		}
	})
	t.Run("a revoked token is reported", func(t *testing.T) {
		must(t, gcp.Client().CoreV1().Secrets(systemNamespace).Delete(t.Context(), account, metav1.DeleteOptions{}))
		revoked(t, gcp, "the token", e.handed(t, aws, "gcp")[agents])
		err := e.renew(t, aws, "tokens-revoked", "-all")
		if err == nil || !strings.Contains(err.Error(), agents+" of gcp: renew the token that expires at ") || !strings.Contains(err.Error(), "code 401") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("static ones work, and stay", func(t *testing.T) { e.staticTokens(t) })
}

// steal keeps requesting tokens of an account with one of its tokens, like a thief, until the
// function that it returns is called, which returns the last token for each Secret of the
// account.
func steal(t *testing.T, c *testbed.Cluster, token, account string) (stop func() map[types.UID]string) {
	t.Helper()
	eventually(t, time.Minute, "the thief to get a token", func(ctx context.Context) error {
		_, err := askFor(ctx, t, c, token, account, boundTo(account))
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	got := map[types.UID]string{}
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			if stolen, err := askFor(ctx, t, c, token, account, boundTo(account)); err == nil {
				if claims, err := tokens.Parse(stolen); err == nil {
					got[claims.Secret.UID] = stolen
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(group.Wait)
	t.Cleanup(cancel)
	return func() map[types.UID]string {
		cancel()
		group.Wait()
		return got
	}
}

// boundTo is a request that the accounts may make.
func boundTo(secret string) authenticationv1.TokenRequestSpec {
	seconds := int64(30 * 24 * 60 * 60)
	return authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret},
	}
}

// askFor requests a token of an account with another token.
func askFor(ctx context.Context, t *testing.T, c *testbed.Cluster, token, account string, spec authenticationv1.TokenRequestSpec) (string, error) {
	t.Helper()
	answer, err := clientWith(t, c, token).CoreV1().ServiceAccounts(systemNamespace).
		CreateToken(ctx, account, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// asksForNoOther tests the role of a neighbour's account, and then the admission policy, with
// an account that may request every token by RBAC.
func (e *example) asksForNoOther(t *testing.T, token string) {
	gcp := e.clusters[1]
	const account, other = "semaphore-wireguard-remote-aws", "semaphore-policy-remote-aws"
	_, err := askFor(t.Context(), t, gcp, token, other, boundTo(other))
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		t.Errorf("for another account: %v, expected that there is no right to", err)
	}
	must(t, gcp.Grant(t.Context(), systemNamespace, account,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"*"}}))
	claims, err := tokens.Parse(token)
	must(t, err)
	own := func() authenticationv1.TokenRequestSpec {
		spec := boundTo(account)
		spec.BoundObjectRef.UID = claims.Secret.UID
		return spec
	}
	unbound, long, pod, empty, hour, former := own(), own(), boundTo(account), boundTo(""), own(), own()
	former.BoundObjectRef.UID = "8ea534ec-9afd-4a92-ac15-3d8676905cf3"
	*hour.ExpirationSeconds = 3607
	unbound.BoundObjectRef = nil
	*long.ExpirationSeconds++
	pod.BoundObjectRef.Kind = "Pod"
	untilRefused(t, func(ctx context.Context) error {
		_, err := askFor(ctx, t, gcp, token, other, boundTo(other))
		return err
	})
	for _, c := range []struct {
		name    string
		account string
		spec    authenticationv1.TokenRequestSpec
		want    string
	}{
		{"its own", account, own(), ""},
		{"of another account", other, boundTo(other), "may only renew its own token"},
		{"of an account of another tool of ours, bound to its own Secret", other, boundTo(account), "may only renew its own token"},
		{"bound to nothing", account, unbound, "must be bound to the Secret of its account"},
		{"bound to another Secret", account, boundTo(other), "must be bound to the Secret of its account"},
		{"bound to a pod", account, pod, "must be bound to the Secret of its account"},
		{"bound to a Secret without a name", account, empty, "must be bound to the Secret of its account"},
		{"that lasts longer", account, long, "must not last longer than 30 days"},
		{"bound to a Secret that it doesn't know", account, boundTo(account), "by the Secret's UID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := askFor(t.Context(), t, gcp, token, c.account, c.spec)
			if c.want == "" {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "semaphore-remote-tokens-aws") {
				t.Errorf("refused with %v, expected %q", err, c.want)
			}
		})
	}
	t.Run("bound to the Secret before this one", func(t *testing.T) {
		if _, err := askFor(t.Context(), t, gcp, token, account, former); !apierrors.IsConflict(err) {
			t.Errorf("refused with %v", err)
		}
	})
	// API servers make a year of 3607 seconds (k8s.io/kubernetes,
	// pkg/serviceaccount/claims.go, WarnOnlyBoundTokenExpirationSeconds): for tokens that are
	// bound to a pod, which the policy refuses.
	t.Run("of 3607 seconds, which isn't made a year", func(t *testing.T) {
		got, err := askFor(t.Context(), t, gcp, token, account, hour)
		must(t, err)
		claims, err := tokens.Parse(got)
		must(t, err)
		if lasts := claims.Expires.Sub(claims.Issued); lasts != 3607*time.Second {
			t.Errorf("it lasts %s", lasts)
		}
	})
	t.Run("all others continue", func(t *testing.T) {
		_, err := gcp.Client().CoreV1().ServiceAccounts(systemNamespace).
			CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		must(t, err)
	})
}

// renewsOnly tests the role and the admission policy of semaphore-tokens.
func (e *example) renewsOnly(t *testing.T) {
	aws := e.clusters[0]
	token, err := aws.Client().CoreV1().ServiceAccounts(systemNamespace).
		CreateToken(t.Context(), "semaphore-tokens", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	client := clientWith(t, aws, token.Status.Token).CoreV1()
	secrets := client.Secrets(systemNamespace)
	_, err = secrets.Get(t.Context(), "semaphore-policy-remotes", metav1.GetOptions{})
	must(t, err)
	_, get := secrets.Get(t.Context(), "semaphore-wireguard-remote-gcp", metav1.GetOptions{})
	_, list := secrets.List(t.Context(), metav1.ListOptions{})
	_, elsewhere := client.Secrets("default").Get(t.Context(), "semaphore-policy-remotes", metav1.GetOptions{})
	_, create := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-policy-remotes"}}, metav1.CreateOptions{})
	_, patch := secrets.Patch(t.Context(), "semaphore-wireguard-remote-gcp", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	_, tokenOf := client.ServiceAccounts(systemNamespace).CreateToken(t.Context(), "semaphore-tokens", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	_, config := client.ConfigMaps(systemNamespace).List(t.Context(), metav1.ListOptions{})
	for what, err := range map[string]error{
		"read another Secret": get, "list Secrets": list, "read Secrets elsewhere": elsewhere, "create one": create, "change another one": patch,
		"delete one":      secrets.Delete(t.Context(), "semaphore-policy-remotes", metav1.DeleteOptions{}),
		"ask for a token": tokenOf, "read settings": config,
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("it may %s: %v", what, err)
		}
	}
	const policies = "semaphore-policy-remotes"
	write := func(ctx context.Context, text string) error {
		_, err := secrets.Patch(ctx, policies, types.MergePatchType, []byte(text), dryPatch)
		return err
	}
	for _, c := range []struct{ name, patch string }{
		{"no change any more", `{"immutable":true}`},
		{"another authority", `{"data":{"gcp.ca.crt":"eA=="}}`},
		{"no authority", `{"data":{"gcp.ca.crt":null}}`},
		{"no token", `{"data":{"gcp.token":null}}`},
		{"the token of another neighbour", `{"data":{"merit.token":"eA=="}}`},
		{"a label", `{"metadata":{"labels":{"a":"b"}}}`},
		{"no label", `{"metadata":{"labels":null}}`},
		{"an annotation", `{"metadata":{"annotations":{"a":"b"}}}`},
		{"a finalizer", `{"metadata":{"finalizers":["example.com/stay"]}}`},
		{"an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"gone","uid":"gone"}]}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, write(t.Context(), c.patch), "semaphore-tokens may only replace tokens")
		})
	}
	t.Run("another token", func(t *testing.T) { must(t, write(t.Context(), `{"data":{"gcp.token":"eA=="}}`)) })
	t.Run("an administrator may", func(t *testing.T) {
		_, err := aws.Client().CoreV1().Secrets(systemNamespace).Patch(t.Context(), policies, types.MergePatchType, []byte(`{"immutable":true}`), dryPatch)
		must(t, err)
	})
}

// staticTokens moves to tokens that never expire.
func (e *example) staticTokens(t *testing.T) {
	aws, gcp := e.clusters[0], e.clusters[1]
	folder := t.TempDir()
	remote, err := filepath.Rel(folder, filepath.Join(deployFolder(t), "remote"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"),
		fmt.Appendf(nil, "resources: [%s]\ncomponents: [%s/static-tokens]\nnameSuffix: -aws\n", remote, remote), 0o644))
	for _, tool := range []string{"wireguard", "service-mirror", "policy"} {
		e.kubectl(t, gcp, "-n", systemNamespace, "delete", "secret", "--ignore-not-found", "semaphore-"+tool+"-remote-aws")
	}
	e.kubectl(t, gcp, "apply", "-k", folder)
	if out, err := e.shell(t, "too-early", "semaphorectl tokens --from gcp aws gcp"); err == nil || !strings.Contains(out, "has no token yet") {
		t.Errorf("before the controller manager has filled the Secrets: %v\n%s", err, out)
	}
	issueTokens(t, gcp)
	e.handOver(t, "gcp", "aws")
	static := e.handed(t, aws, "gcp")
	must(t, works(t.Context(), t, gcp, static["semaphore-wireguard-remotes"]))
	if out, err := e.shell(t, "revoke-static", "semaphorectl tokens --revoke --from gcp aws gcp"); err == nil || !strings.Contains(out, "never expires") {
		t.Errorf("revoked: %v\n%s", err, out)
	}
}
