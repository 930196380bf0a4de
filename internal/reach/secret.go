package reach

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/netip"
)

// Secret is shared by the pods of one run, which authenticate each other's requests and
// responses with it. It is never sent. It is in the pods' specifications, readable for
// accounts that may read pods in their namespace, most of which may run pods there as well;
// it is of no use after the run.
//
// An empty Secret disables authentication, as in older images, which ignore it.
type Secret string

// NewSecret returns a new random secret.
func NewSecret() Secret { return Secret(rand.Text()) }

// String keeps it out of logs.
func (Secret) String() string { return "[secret]" }

// GoString keeps it out of logs with %#v.
func (s Secret) GoString() string { return s.String() }

const (
	// nonceHeader has the random nonce of a request, proofHeader the proof of a request or
	// response.
	nonceHeader, proofHeader = "Semaphore-Nonce", "Semaphore-Proof"
	// proofSize is the length of the truncated HMAC in bytes; headers have it in hexadecimal.
	proofSize = 16
)

// sum returns the HMAC (RFC 2104) of all parts.
func (s Secret) sum(parts ...string) []byte {
	mac := hmac.New(sha256.New, []byte(s))
	for _, part := range parts {
		_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) // never fails
		_, _ = mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:proofSize]
}

// prove sets the proof of parts in a header.
func (s Secret) prove(header http.Header, parts ...string) {
	if s != "" {
		header.Set(proofHeader, hex.EncodeToString(s.sum(parts...)))
	}
}

// proven reports whether a header has the proof of parts.
func (s Secret) proven(header http.Header, parts ...string) bool {
	proof, err := hex.DecodeString(header.Get(proofHeader))
	return s == "" || err == nil && hmac.Equal(proof, s.sum(parts...))
}

// local returns the local address of a request's connection.
func local(r *http.Request) string {
	if address, is := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string }); is {
		if port, err := netip.ParseAddrPort(address.String()); err == nil {
			return plain(port.Addr().String())
		}
	}
	return ""
}

// plain returns the canonical form of an address.
func plain(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return address
}
