package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestPoliciesFollowTheNamespace installs everything by an overlay into another namespace,
// with another suffix, and checks that the admission policies work there.
func TestPoliciesFollowTheNamespace(t *testing.T) {
	t.Parallel()
	const namespace = "mesh-of-ours"
	// Kustomize takes no absolute paths.
	overlay := t.TempDir()
	base, err := filepath.Rel(overlay, deployFolder(t))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(strings.ReplaceAll(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: `+namespace+`
nameSuffix: -two
resources:
  - BASE/wireguard
  - BASE/service-mirror
  - BASE/policy
  - BASE/tokens
`, "BASE", base)), 0o644))

	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", "v3.yaml")))
	out, err := cluster.Kubectl(t.Context(), "kustomize", overlay)
	must(t, err)
	if strings.Contains(out, systemNamespace) {
		t.Errorf("the other namespace is still in:\n%s", out)
	}
	out = strings.ReplaceAll(out, "name: "+namespace+"-two\n", "name: "+namespace+"\n")
	manifest := filepath.Join(t.TempDir(), "all.yaml")
	must(t, os.WriteFile(manifest, []byte(out), 0o644))
	must(t, cluster.Apply(t.Context(), manifest))

	for _, name := range []string{"aws-1", "aws-2"} {
		_, err := cluster.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	const renewer, handed = "semaphore-tokens", "semaphore-policy-remotes"
	_, err = cluster.Client().CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: handed}, Data: map[string][]byte{"gcp.token": []byte("x")},
	}, metav1.CreateOptions{})
	must(t, err)
	rule := rbacv1.PolicyRule{APIGroups: []string{"", "projectcalico.org"}, Resources: []string{"nodes", "services", "globalnetworksets", "secrets"}, Verbs: []string{"*"}}
	token := map[string]string{}
	for _, account := range []string{agentAccount, mirrorAccount, policyAccount, renewer} {
		must(t, cluster.Grant(t.Context(), namespace, account+"-two", rule))
		token[account] = accountToken(t, cluster, namespace, account+"-two", "aws-1")
	}
	publish := func(ctx context.Context, node string) error {
		_, err := clientWith(t, cluster, token[agentAccount]).CoreV1().Nodes().Patch(ctx, node, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":"key"}}}`), metav1.PatchOptions{})
		return err
	}
	create := func(ctx context.Context, change func(*corev1.Service)) error {
		_, err := clientWith(t, cluster, token[mirrorAccount]).CoreV1().Services(namespace).Create(ctx, mirrorService(ourService, change), dryCreate)
		return err
	}
	put := func(ctx context.Context, change func(*unstructured.Unstructured)) error {
		_, err := setsWith(t, cluster, token[policyAccount], 0).Create(ctx, networkSet(0, "gcp-default-web", change), dryCreate)
		return err
	}
	replace := func(ctx context.Context, patch string) error {
		_, err := clientWith(t, cluster, token[renewer]).CoreV1().Secrets(namespace).Patch(ctx, handed, types.MergePatchType, []byte(patch), dryPatch)
		return err
	}
	for _, c := range []struct {
		account string
		bad     func(context.Context) error
		refusal string
		good    func(context.Context) error
	}{
		{agentAccount, func(ctx context.Context) error { return publish(ctx, "aws-2") }, "may not patch node aws-2",
			func(ctx context.Context) error { return publish(ctx, "aws-1") }},
		{mirrorAccount, func(ctx context.Context) error {
			return create(ctx, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })
		}, "must have type ClusterIP", func(ctx context.Context) error { return create(ctx, nil) }},
		{policyAccount, func(ctx context.Context) error {
			return put(ctx, func(s *unstructured.Unstructured) { s.SetLabels(nil) })
		}, "may not mark a network set", func(ctx context.Context) error { return put(ctx, nil) }},
		{renewer, func(ctx context.Context) error { return replace(ctx, `{"immutable":true}`) }, "may only replace tokens",
			func(ctx context.Context) error { return replace(ctx, `{"data":{"gcp.token":"eQ=="}}`) }},
	} {
		t.Run(c.account, func(t *testing.T) {
			untilRefused(t, c.bad)
			refused(t, c.bad(t.Context()), c.refusal)
			must(t, c.good(t.Context()))
		})
	}
}

// TestPolicyFollowsNamesOfNeighbours requests tokens that survive a revocation, for accounts
// of neighbours with kustomize's name prefixes and suffixes.
func TestPolicyFollowsNamesOfNeighbours(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	for name, c := range map[string]struct{ names, account, policy string }{
		"a prefix":            {"namePrefix: eu-\nnameSuffix: -aws\n", "eu-semaphore-wireguard-remote-aws", "eu-semaphore-remote-tokens-aws"},
		"without a dash":      {"namePrefix: eu\nnameSuffix: aws\n", "eusemaphore-wireguard-remoteaws", "eusemaphore-remote-tokensaws"},
		"a suffix with a dot": {"nameSuffix: -aws.eu\n", "semaphore-wireguard-remote-aws.eu", "semaphore-remote-tokens-aws.eu"},
	} {
		t.Run(name, func(t *testing.T) {
			overlay := t.TempDir()
			base, err := filepath.Rel(overlay, filepath.Join(deployFolder(t), "remote"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"),
				[]byte("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"+c.names+"resources:\n  - "+base+"\n"), 0o600))
			must(t, cluster.Apply(t.Context(), overlay))
			// Each policy is about the names of all.
			defer func() {
				must(t, cluster.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), c.policy, metav1.DeleteOptions{}))
			}()
			first, err := cluster.Client().CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), c.account,
				&authenticationv1.TokenRequest{Spec: boundTo(c.account)}, metav1.CreateOptions{})
			must(t, err)
			spec := boundTo(c.account)
			spec.BoundObjectRef = nil
			eventually(t, time.Minute, "a token that is bound to nothing to be refused", func(ctx context.Context) error {
				_, err := askFor(ctx, t, cluster, first.Status.Token, c.account, spec)
				switch {
				case err == nil:
					return errors.New("it isn't")
				case !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+c.policy+"'"):
					return fmt.Errorf("it is by something else: %w", err)
				}
				return nil
			})
		})
	}
}
