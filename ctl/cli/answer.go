package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Advised is an error with its remedy.
type Advised struct {
	Err    error
	Remedy string
}

// Error returns the error.
func (e *Advised) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Advised) Unwrap() error { return e.Err }

// Unanswered explains the error of the first request to a cluster.
func (c *Cluster) Unanswered(err error) error {
	advise := func(what, remedy string) error {
		return &Advised{fmt.Errorf(what+": %w", c.Server, err), remedy}
	}
	in := Quote(c.Context)
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return advise("the certificate of the API server at %s isn't of the certificate authority in the kubeconfig",
			"check that the certificate-authority-data of context "+in+" is of this cluster (of entries of equal names in several kubeconfigs the first one is used), and get a new kubeconfig if the cluster has a new authority")
	case errors.As(err, &name):
		return advise("the certificate of the API server at %s is for other names",
			"set server of context "+in+" to one of these names, or tls-server-name")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return advise("the certificate of the API server at %s isn't valid at this time", "renew the certificate, or correct the clock of this machine")
	case errors.As(err, &invalid):
		return advise("the certificate of the API server at %s is invalid", "renew the certificate")
	case apierrors.IsUnauthorized(err):
		return advise("the API server at %s doesn't accept the credentials of the kubeconfig", "log in again, or get a new kubeconfig for context "+in)
	case apierrors.IsForbidden(err):
		return advise("the API server at %s denies everything", "use a context with more rights; what this one has: "+c.Kubectl("auth can-i --list"))
	case strings.Contains(err.Error(), "getting credentials"):
		return advise("no credentials for the API server at %s", "the kubeconfig gets them from another program: check that this works: "+c.Kubectl("get namespaces"))
	case strings.Contains(err.Error(), "proxyconnect"):
		return advise("the API server at %s is not reached through the proxy", "check proxy-url of context "+in+", or the variables HTTPS_PROXY and NO_PROXY")
	case strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return advise("%s isn't an API server with TLS", "check server of context "+in)
	case errors.Is(err, context.DeadlineExceeded):
		return advise("the API server at %s doesn't answer in time", "check that the address is right, and reachable from here")
	}
	return advise("the API server at %s doesn't answer", "check that it runs, that the address in the kubeconfig is right, and that it is reachable from here")
}
