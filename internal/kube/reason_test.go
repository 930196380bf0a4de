package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// TestReasonsOfRequests makes requests that fail, to a server.
func TestReasonsOfRequests(t *testing.T) {
	ca := newAuthority()
	api, named := newAPIServer(t, ca), newAPIServer(t, ca)
	api.set(func() { api.token = secret })
	named.set(func() { named.cert = ca.issue("other.example") })
	authority, token := writeTemp(t, "ca.pem", ca.pem), writeTemp(t, "token", []byte(secret))
	for name, c := range map[string]struct {
		access config.Access
		want   string
	}{
		"another CA":         {config.Access{APIURL: api.url(), CAFile: writeTemp(t, "other.pem", newAuthority().pem), TokenFile: token}, WrongCA},
		"another name":       {config.Access{APIURL: named.url(), CAFile: authority, TokenFile: token}, WrongCA},
		"a wrong token":      {config.Access{APIURL: api.url(), CAFile: authority, TokenFile: writeTemp(t, "wrong", []byte("wrong"))}, TokenRefused},
		"no token":           {config.Access{APIURL: api.url(), CAFile: authority, TokenFile: filepath.Join(t.TempDir(), "none")}, CredentialsMissing},
		"an empty token":     {config.Access{APIURL: api.url(), CAFile: authority, TokenFile: writeTemp(t, "empty", nil)}, CredentialsMissing},
		"a token of 2 lines": {config.Access{APIURL: api.url(), CAFile: authority, TokenFile: writeTemp(t, "lines", []byte("a\nb"))}, CredentialsMissing},
		"no server":          {config.Access{APIURL: "https://127.0.0.1:1", CAFile: authority, TokenFile: token}, Away},
		"no proxy":           {config.Access{APIURL: api.url(), CAFile: authority, TokenFile: token, ProxyURL: "http://127.0.0.1:1"}, Away},
	} {
		client := clientFor(t, c.access)
		for what, err := range map[string]error{"list": listNodes(t.Context(), client), "get": Get(func() (Client, error) { return client, nil }, "/api/v1/nodes")(t.Context())} {
			if err == nil || Reason(printable.Error(withoutURL(err))) != c.want {
				t.Errorf("%s: %s: %v: expected %s", name, what, err, c.want)
			}
		}
	}
}

func TestReasons(t *testing.T) {
	expired := x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}
	for want, errs := range map[string][]error{
		CertificateExpired: {expired},
		RightsMissing:      {apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no"))},
		NameUnresolved:     {&net.DNSError{Err: "no such host", IsNotFound: true}, &net.DNSError{Err: "server misbehaving", IsTemporary: true}},
		Away: {
			&net.DNSError{Err: "i/o timeout", IsTimeout: true}, &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, context.DeadlineExceeded,
			errors.New("http2: client connection lost"), &proxyError{"http://a", errors.New("Forbidden")},
		},
		OtherReason: {errors.New("teapot"), &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}},
	} {
		for _, err := range errs {
			if got := Reason(errors.Join(fmt.Errorf("list: %w", err), nil)); got != want || !slices.Contains(Reasons(), got) {
				t.Errorf("%v: %s, expected %s", err, got, want)
			}
		}
	}
}
