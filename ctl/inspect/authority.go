package inspect

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// maxVersion bounds the response of an API server with its version, in bytes.
const maxVersion = 64 << 10

// WithServersAuthority returns a cluster's own CA certificates, in PEM, and with them the one that
// verifies the API server in the kubeconfig, if they don't: a public load balancer in front of it
// has a certificate of another CA. The second result is that one, or nil. Where the kubeconfig
// skips the verification, or the API server doesn't answer, nothing is added.
func WithServersAuthority(ctx context.Context, c *cli.Cluster, ca string) (string, *x509.Certificate) {
	if c.Config == nil || c.Config.Host == "" {
		return ca, nil
	}
	transport, err := rest.TransportFor(c.Config)
	if err != nil {
		return ca, nil
	}
	request, err := http.NewRequestWithContext(cli.WithRaw(ctx, maxVersion), http.MethodGet, c.Server+"/version", http.NoBody)
	if err != nil {
		return ca, nil
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return ca, nil
	}
	_ = response.Body.Close() // not read
	if response.TLS == nil || len(response.TLS.VerifiedChains) == 0 {
		return ca, nil
	}
	own, between := x509.NewCertPool(), x509.NewCertPool()
	own.AppendCertsFromPEM([]byte(ca))
	for _, sent := range response.TLS.PeerCertificates[1:] {
		between.AddCert(sent)
	}
	if _, err := response.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: own, Intermediates: between}); err == nil {
		return ca, nil
	}
	chain := response.TLS.VerifiedChains[0]
	root := chain[len(chain)-1]
	return ca + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw})), root
}
