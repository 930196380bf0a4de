package inspect

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestAuthority reads certificates without the text around them.
func TestAuthority(t *testing.T) {
	one, two := kubetest.Certificate(t), kubetest.Certificate(t)
	key := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("secret words")}))
	for name, c := range map[string]struct {
		text, want string
		invalid    bool
	}{
		"two":              {one + two, one + two, false},
		"text around them": {"# ours\n" + one + "\n# of before\n" + two + "words", one + two, false},
		"none":             {"", "", false},
		"words":            {"PEM", "", true},
		"a key":            {one + key, "", true},
		"half of one":      {one + two[:100], "", true},
		"no certificate":   {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("secret words")})), "", true},
		"too many":         {strings.Repeat(one, 1+maxCertificates/len(one)), "", true},
	} {
		f := &Facts{}
		err := f.readAuthority(t.Context(), fakeCluster("", configMap("kube-system", "kube-root-ca.crt", "ca.crt", c.text)))
		if _, invalid := errors.AsType[*InvalidError](err); f.CA != c.want || invalid != c.invalid || (err == nil) == c.invalid {
			t.Errorf("%s: %q, %v", name, f.CA, err)
		}
	}
}

// FuzzCertificates checks that only certificates are returned.
func FuzzCertificates(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Certificates(text)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM([]byte(got)) || bytes.Contains([]byte(got), []byte("KEY")) {
			t.Errorf("%q", got)
		}
	})
}
