package scenarios_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestStatusAuthentication checks access to a program's metrics with a real API server, with
// the rights of deploy/authenticated.
func TestStatusAuthentication(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	c := startCluster(t, auditArgs(t, log)...)
	must(t, programs.Grant(t.Context(), programs.ServiceMirror, c))
	must(t, c.Apply(t.Context(), filepath.Join(deployFolder(t), "authenticated", "rbac.yaml")))
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "services"},
		{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: systemNamespace},
		{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
	} {
		must(t, c.AwaitRight(t.Context(), systemNamespace, programs.ServiceMirror, right, true))
	}
	node, err := c.AddNode(t.Context(), testbed.NodeConfig{})
	must(t, err)
	const port = 8080
	replica, err := programs.Prepare(t.Context(), programs.Config{
		Name: programs.ServiceMirror, Replica: "mirror", Binary: program(t, programs.ServiceMirror), Port: port,
	}, node)
	must(t, err)
	replica.Env["SEMAPHORE_LISTEN_AUTH"] = "token"
	// A remote is required.
	replica.Env["SEMAPHORE_REMOTES"] = "gcp"
	replica.Env[programs.Variable("gcp", "KUBECONFIG")] = replica.Local.Kubeconfig()
	must(t, replica.Start())

	// Two accounts, one of which may get metrics.
	for _, name := range []string{"prometheus", "stranger"} {
		must(t, c.Grant(t.Context(), "monitoring", name))
	}
	reader, err := c.Credentials(t.Context(), "monitoring", "prometheus")
	must(t, err)
	stranger, err := c.Credentials(t.Context(), "monitoring", "stranger")
	must(t, err)
	_, err = c.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus-metrics"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "semaphore-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "monitoring", Name: "prometheus"}},
	}, metav1.CreateOptions{})
	must(t, err)
	token := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		must(t, err)
		return strings.TrimSpace(string(text))
	}
	page := func(path string) string { return url(node.Addresses()[0], port, path) }
	expect := func(name, token, path string, want int) {
		t.Helper()
		eventually(t, repair, name, func(ctx context.Context) error {
			code, err := getWith(ctx, node, page(path), token)
			if err == nil && code != want {
				err = fmt.Errorf("%s: %d, want %d", path, code, want)
			}
			return err
		})
	}
	good := token(reader.TokenFile())
	expect("no token", "", "/metrics", http.StatusUnauthorized)
	expect("an invalid token", "x.y.z", "/metrics", http.StatusUnauthorized)
	expect("another account", token(stranger.TokenFile()), "/metrics", http.StatusForbidden)
	expect("the account of Prometheus", good, "/metrics", http.StatusOK)
	expect("what it may not get", good, "/status", http.StatusForbidden)
	// Neither the kubelet nor the program's own pod has a token.
	must(t, replica.Healthy(t.Context()))
	if _, err := replica.Leads(t.Context()); err != nil {
		t.Error(err)
	}

	// Before it restarts: at first it has no roles, and forbids everything.
	have, used := granted(t, c), used(t, log)
	for _, r := range []right{
		{account: programs.ServiceMirror, verb: "create", resource: "tokenreviews.authentication.k8s.io"},
		{account: programs.ServiceMirror, verb: "create", resource: "subjectaccessreviews.authorization.k8s.io"},
	} {
		if !used[r] || !have[r] {
			t.Errorf("%v: not both granted and used", r)
		}
	}
	for r := range have {
		if strings.Contains(r.resource, "reviews.") && r.verb != "create" {
			t.Errorf("granted, and nothing uses it: %v", r)
		}
	}

	// A token that hasn't been reviewed yet, and an API server that is down.
	must(t, reader.Rotate(t.Context()))
	fresh := token(reader.TokenFile())
	if fresh == good {
		t.Fatal("it is the token from before")
	}
	c.StopAPI()
	expect("a new token while the API server is down", fresh, "/metrics", http.StatusServiceUnavailable)
	must(t, c.StartAPI(within(t, 3*time.Minute)))
	expect("the same when it is back", fresh, "/metrics", http.StatusOK)

	for _, secret := range []string{good, fresh, token(stranger.TokenFile())} {
		if strings.Contains(replica.Process().Log(), secret) {
			t.Error("a token is in the log")
		}
	}
	must(t, replica.Stop(within(t, time.Minute)))
}

// getWith requests a page with a token, and returns the status code.
func getWith(ctx context.Context, from *testbed.Node, url, token string) (int, error) {
	transport := &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// TestAuthenticatedComponent adds the component, and that for systemd-networkd, to the
// example, and to a kustomization with one program.
func TestAuthenticatedComponent(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	for _, c := range []struct {
		resources []string
		want      int
	}{
		{[]string{"wireguard", "service-mirror", "policy", "relay"}, 4},
		{[]string{"wireguard"}, 1},
	} {
		// Beside the others, where kustomize finds them by relative paths.
		root := t.TempDir()
		must(t, os.CopyFS(root, os.DirFS(deployFolder(t))))
		folder := filepath.Join(root, "own")
		must(t, os.Mkdir(folder, 0o755))
		text := "resources:\n"
		for _, r := range c.resources {
			text += "  - ../" + r + "\n"
		}
		must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text+"components:\n  - ../authenticated\n  - ../networkd\n"), 0o600))
		out, err := cluster.Kubectl(t.Context(), "kustomize", folder)
		must(t, err)
		if got := strings.Count(out, "name: SEMAPHORE_LISTEN_AUTH\n          value: token\n"); got != c.want {
			t.Errorf("%q: %d programs ask for a token, want %d:\n%s", c.resources, got, c.want, out)
		}
		if got := strings.Count(out, "mountPath: /run/systemd/netif\n"); got != 1 {
			t.Errorf("%q: %d programs see systemd-networkd, want the agent:\n%s", c.resources, got, out)
		}
		out, err = cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", folder)
		if err != nil || strings.Contains(out, "Warning") {
			t.Errorf("%q: %v\n%s", c.resources, err, out)
		}
	}
}
