package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Reasons of failed requests to API servers. New credentials correct the first two.
const (
	TokenRefused       = "token-refused"
	CredentialsMissing = "credentials-missing"
	RightsMissing      = "rights-missing"
	CertificateExpired = "certificate-expired"
	WrongCA            = "wrong-ca"
	NameUnresolved     = "api-name-unresolved"
	Away               = "api-away"
	OtherReason        = "api-failing"
)

// Reasons returns all reasons.
func Reasons() []string {
	return []string{TokenRefused, CredentialsMissing, RightsMissing, CertificateExpired, WrongCA, NameUnresolved, Away, OtherReason}
}

// Reason returns the reason of a failed request. Client-go and net/http have no types for some errors
// of reading a token, and of connections of HTTP/2.
func Reason(err error) string {
	says := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(err.Error(), part) {
				return true
			}
		}
		return false
	}
	invalid, _ := errors.AsType[x509.CertificateInvalidError](err)
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	name, unresolved := errors.AsType[*net.DNSError](err)
	_, proxied := errors.AsType[*proxyError](err)
	failed, connecting := errors.AsType[net.Error](err)
	alert, isAlert := errors.AsType[*net.OpError](err)
	switch {
	case invalid.Cert != nil && invalid.Reason == x509.Expired:
		return CertificateExpired
	case unverified:
		return WrongCA
	case errors.Is(err, fs.ErrNotExist), says("no such file", "empty token", `invalid header field value for "Authorization"`):
		return CredentialsMissing
	case proxied: // Whatever the proxy's reason is, the API server was not reached.
		return Away
	case apierrors.IsUnauthorized(err):
		return TokenRefused
	case apierrors.IsForbidden(err):
		return RightsMissing
	case unresolved && !name.IsTimeout:
		return NameUnresolved
	case isAlert && strings.HasSuffix(alert.Op, " error"): // of TLS
		return OtherReason
	case connecting && (isAlert || failed.Timeout()), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), says("connection lost"):
		return Away
	}
	return OtherReason
}

// Connection returns the state of a watch, or of another connection, for status pages.
func Connection(synced bool, contact time.Time, err error) statuspage.Connection {
	c := statuspage.Connection{Synced: synced}
	if !contact.IsZero() {
		c.LastContact = &contact
	}
	if err != nil {
		c.Error, c.Reason = err.Error(), Reason(err)
	}
	return c
}
