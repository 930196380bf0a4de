// Package kubetest stands in for clusters in tests of programs.
package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Token is the one that DeadAccess has, and the one that a Cluster wants. It belongs
// in no log.
const Token = "very-secret-token"

// DeadAccess returns access to an address without an API server.
func DeadAccess(t testing.TB) config.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, "https://127.0.0.1:1", Authority(t))
	return config.Access{Kubeconfig: path}
}

// Authority returns the certificate of an authority, in PEM, without its key.
func Authority(t testing.TB) []byte {
	t.Helper()
	return newAuthority(t).pem
}

// authority issues certificates.
type authority struct {
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}}
	var der []byte
	der, a.key = a.sign(t, a.cert)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Certificate returns a self-signed certificate in PEM.
func Certificate(t testing.TB) string { return string(newAuthority(t).pem) }

// issue returns a server's certificate for an IP address.
func (a *authority) issue(t testing.TB, address string) tls.Certificate {
	t.Helper()
	der, key := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.ParseIP(address)}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// sign makes a certificate with a new key; that of the authority itself signs itself.
func (a *authority) sign(t testing.TB, template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if template == a.cert {
		signer = key
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), signer); err != nil {
		t.Fatal(err)
	}
	return der, key
}
