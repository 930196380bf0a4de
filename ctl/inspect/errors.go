package inspect

import "strings"

// Kinds of errors that new credentials correct.
const (
	TokenRefused       = "token-refused"
	CredentialsMissing = "credentials-missing"
)

// RightsMissing is the kind of errors of API servers that don't allow a request.
const RightsMissing = "rights-missing"

// failing is the kind of all others.
const failing = "api-failing"

// kinds classifies errors of API servers by substrings, as client-go, net/http, crypto/x509
// and internal/kube word them.
var kinds = []struct {
	kind  string
	parts []string
}{
	{"certificate-expired", []string{"x509: certificate has expired or is not yet valid"}},
	{"wrong-ca", []string{"x509: certificate", "tls: failed to verify"}},
	{CredentialsMissing, []string{"no such file", "empty token", `invalid header field value for "Authorization"`}},
	// Whatever the proxy's reason is, the API server was not reached.
	{"api-away", []string{"through the proxy "}},
	{TokenRefused, []string{"Unauthorized", "asked for the client to provide credentials"}},
	{RightsMissing, []string{"forbidden", "Forbidden"}},
	{"api-name-unresolved", []string{"no such host", "server misbehaving", "Temporary failure in name resolution"}},
	{"api-away", []string{
		"connection refused", "i/o timeout", "no route to host", "network is unreachable", "deadline exceeded", "EOF",
		"connection reset", "TLS handshake timeout", "Client.Timeout", "did not answer", "no answer", "context canceled", "connection lost",
	}},
}

// KindOf returns the kind of an error: the rule of doctor that reports it.
func KindOf(err string) string {
	for _, k := range kinds {
		for _, part := range k.parts {
			if strings.Contains(err, part) {
				return k.kind
			}
		}
	}
	return failing
}

// Kinds returns all kinds.
func Kinds() []string {
	all := []string{failing}
	for _, k := range kinds {
		all = append(all, k.kind)
	}
	return all
}
