package facts

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// mostCertificates is how many bytes certificates have at most: more than any cluster's.
const mostCertificates = 65536

// Certificates returns the certificates of a text in PEM, and nothing else that is in
// it. It is an error if there are none, or what isn't one, such as a key.
func Certificates(text []byte) (string, error) {
	if len(text) > mostCertificates {
		return "", fmt.Errorf("more than %d bytes", mostCertificates)
	}
	var out bytes.Buffer
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return "", errors.New("something else than certificates is in it")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", errors.New("what it has as certificate is none")
		}
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return "", err
		}
	}
	if out.Len() == 0 || bytes.Contains(text, []byte("-----")) {
		return "", errors.New("these are no certificates")
	}
	return out.String(), nil
}
