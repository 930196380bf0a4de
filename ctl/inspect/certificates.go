package inspect

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxCertificates bounds the certificates of a cluster, in bytes of PEM.
const maxCertificates = 65536

// Certificates returns the certificates of a PEM text, without other text around them. It
// is an error if the text contains none, or another PEM block such as a key.
func Certificates(text []byte) (string, error) {
	if len(text) > maxCertificates {
		return "", fmt.Errorf("more than %d bytes", maxCertificates)
	}
	var out bytes.Buffer
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return "", errors.New("it contains PEM blocks other than certificates")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", errors.New("it contains an invalid certificate")
		}
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return "", err
		}
	}
	if out.Len() == 0 || bytes.Contains(text, []byte("-----")) {
		return "", errors.New("it contains no certificates")
	}
	return out.String(), nil
}
