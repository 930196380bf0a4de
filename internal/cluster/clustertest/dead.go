// Package clustertest stands in for clusters in tests of programs.
package clustertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Token is the one that DeadAccess has. It belongs in no log.
const Token = "very-secret-token"

// DeadAccess names an API server that nobody serves.
func DeadAccess(t testing.TB) config.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := `{"apiVersion": "v1", "kind": "Config", "current-context": "dead",
		"contexts": [{"name": "dead", "context": {"cluster": "dead", "user": "nobody"}}],
		"clusters": [{"name": "dead", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "` +
		base64.StdEncoding.EncodeToString(Authority(t)) + `"}}],
		"users": [{"name": "nobody", "user": {"token": "` + Token + `"}}]}`
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Access{Kubeconfig: path}
}

// Authority returns the certificate of an authority, in PEM, whose key nobody has.
func Authority(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
