package measure

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Client returns the configuration of a client that costs an API server least, which
// shares the machine with what is measured: an account whose token is remembered,
// where a certificate is verified at each request, and the binary format where there
// is one. The account is made, with these rights.
func Client(ctx context.Context, c *testbed.Cluster, namespace, name string, rules ...rbacv1.PolicyRule) (*rest.Config, error) {
	if err := c.Grant(ctx, namespace, name, rules...); err != nil {
		return nil, err
	}
	account, err := c.Credentials(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData, cfg.BearerTokenFile = nil, nil, account.TokenFile()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg, nil
}
