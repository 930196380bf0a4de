package testbed_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// deadline bounds one wait of a test.
func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func readNodes() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}}
}

// clientAs is a client with a service account's kubeconfig.
func clientAs(t *testing.T, c *testbed.Cluster, cr *testbed.Credentials) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", cr.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = c.RESTConfig().Dial
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTwoClustersAtTheSameTime(t *testing.T) {
	ctx := deadline(t, 3*time.Minute)
	tb := testbed.Start(t, testbed.Config{})
	clusters, err := tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		t.Fatal(err)
	}
	aws, gcp := clusters[0], clusters[1]
	for i, prefix := range aws.PodSubnets {
		if prefix.Overlaps(gcp.PodSubnets[i]) {
			t.Errorf("pod subnets overlap: %s, %s", prefix, gcp.PodSubnets[i])
		}
	}

	t.Run("rights are those of the service account", func(t *testing.T) {
		if err := aws.Grant(ctx, "kube-system", "reader", readNodes()); err != nil {
			t.Fatal(err)
		}
		cr, err := aws.Credentials(ctx, "kube-system", "reader")
		if err != nil {
			t.Fatal(err)
		}
		client := clientAs(t, aws, cr)
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("list nodes: %v", err)
		}
		if _, err := client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list secrets: %v, want forbidden", err)
		}
		if err := cr.Expire(ctx); err != nil {
			t.Fatal(err)
		}
		client = clientAs(t, aws, cr)
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("with an expired token: %v, want unauthorized", err)
		}
		// It must be refused because it has expired, and for no other reason.
		review, err := aws.Client().AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: read(t, cr.TokenFile())},
		}, metav1.CreateOptions{})
		if err != nil || !strings.Contains(review.Status.Error, "expired") {
			t.Errorf("the API server says %q, %v, want that the token has expired", review.Status.Error, err)
		}
		if err := cr.Rotate(ctx); err != nil {
			t.Fatal(err)
		}
		client = clientAs(t, aws, cr)
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("with a new token: %v", err)
		}
	})

	t.Run("a client with the other cluster's CA refuses the server", func(t *testing.T) {
		config := aws.RESTConfig()
		config.CAData, config.CAFile = nil, gcp.CAFile()
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("error %v, want one about the certificate", err)
		}
	})

	t.Run("the CA is served under the public CA", func(t *testing.T) {
		transport, err := rest.TransportFor(&rest.Config{
			TLSClientConfig: rest.TLSClientConfig{CAFile: tb.PublicCAFile()},
			Dial:            aws.RESTConfig().Dial,
		})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
		if status, body := get(t, client, aws.CAURL()); status != http.StatusOK || body != read(t, aws.CAFile()) {
			t.Errorf("%s answers %d %q, want the CA", aws.CAURL(), status, body)
		}
	})

	t.Run("a killed API server comes back with what it stored", func(t *testing.T) {
		if err := gcp.Grant(ctx, "kept", "reader", readNodes()); err != nil {
			t.Fatal(err)
		}
		gcp.StopAPI()
		if _, err := gcp.Client().Discovery().ServerVersion(); err == nil {
			t.Error("a killed API server answers")
		}
		if _, err := aws.Client().Discovery().ServerVersion(); err != nil {
			t.Errorf("the other one doesn't: %v", err)
		}
		if err := gcp.StartAPI(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := gcp.Client().CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err != nil {
			t.Errorf("after the restart: %v", err)
		}
	})

	t.Run("kubectl", func(t *testing.T) {
		out, err := gcp.Kubectl(ctx, "get", "namespaces", "-o", "name")
		if err != nil || !strings.Contains(out, "namespace/kube-system") {
			t.Errorf("got %q, %v", out, err)
		}
	})
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	recorder := httptest.NewRecorder()
	if _, err := recorder.Body.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, recorder.Body.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestAnAPIServerThatCannotStartSaysWhy(t *testing.T) {
	tb := testbed.Start(t, testbed.Config{})
	_, err := tb.StartCluster(deadline(t, time.Minute), testbed.ClusterConfig{
		Name:          "aws",
		APIServerArgs: []string{"--no-such-flag"},
	})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("error %v, want the API server's own words", err)
	}
}

func TestWaitSaysWhatItWaitedForAndWhy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	err := testbed.Wait(ctx, "the moon", func(context.Context) error {
		if calls++; calls == 2 {
			cancel()
		}
		return fmt.Errorf("cloudy")
	})
	if err == nil || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "cloudy") {
		t.Errorf("error %v, want what and why", err)
	}
	if calls < 2 {
		t.Errorf("asked %d times, want more than once", calls)
	}
}
