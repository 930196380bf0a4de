package testbed

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// signToken makes a service account token as the API server would (RFC 7519,
// ES256 of RFC 7518), with a time of validity that its API refuses: no less
// than ten minutes from now.
func signToken(key *ecdsa.PrivateKey, account *corev1.ServiceAccount, from, to time.Time) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	// Kubernetes names a key by the hash of its public half.
	id := sha256.Sum256(public)
	header := map[string]any{"alg": "ES256", "kid": base64.RawURLEncoding.EncodeToString(id[:])}
	claims := map[string]any{
		"iss": issuer,
		"aud": []string{issuer},
		"sub": "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		"iat": from.Unix(),
		"nbf": from.Unix(),
		"exp": to.Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      account.Namespace,
			"serviceaccount": map[string]any{"name": account.Name, "uid": account.UID},
		},
	}
	var signed string
	for _, part := range []any{header, claims} {
		encoded, err := json.Marshal(part)
		if err != nil {
			return "", err
		}
		if signed != "" {
			signed += "."
		}
		signed += base64.RawURLEncoding.EncodeToString(encoded)
	}
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
