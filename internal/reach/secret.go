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

// Secret is what the pods of one run know and others don't: by it they prove to each other
// that they are of the run. It isn't sent. It is in the pods' specifications: an account that may
// read pods in their namespace can read it. That is fine: most of these can run pods there,
// too, and with the run it ends.
//
// Without one nothing is proven. So it is with an image of before this, which doesn't look
// at it: such pods take any answer for one of theirs.
type Secret string

// NewSecret returns another one.
func NewSecret() Secret { return Secret(rand.Text()) }

// String keeps it out of logs.
func (Secret) String() string { return "[secret]" }

// GoString does so, too.
func (s Secret) GoString() string { return s.String() }

const (
	// nonceHeader has what the answer to a request is proven for, which is another one each
	// time, and proofHeader what proves a request or an answer.
	nonceHeader, proofHeader = "Semaphore-Nonce", "Semaphore-Proof"
	// proofSize is in bytes; of SHA-256, in hexadecimal where it is text.
	proofSize = 16
)

// sum is an HMAC (RFC 2104) of all parts.
func (s Secret) sum(parts ...string) []byte {
	mac := hmac.New(sha256.New, []byte(s))
	for _, part := range parts {
		_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) // It has no errors.
		_, _ = mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:proofSize]
}

// prove puts the proof of parts into a header.
func (s Secret) prove(header http.Header, parts ...string) {
	if s != "" {
		header.Set(proofHeader, hex.EncodeToString(s.sum(parts...)))
	}
}

// proven tells whether a header has it.
func (s Secret) proven(header http.Header, parts ...string) bool {
	proof, err := hex.DecodeString(header.Get(proofHeader))
	return s == "" || err == nil && hmac.Equal(proof, s.sum(parts...))
}

// local is the address that a request came to.
func local(r *http.Request) string {
	if address, is := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string }); is {
		if port, err := netip.ParseAddrPort(address.String()); err == nil {
			return plain(port.Addr().String())
		}
	}
	return ""
}

// plain is an address as all write it.
func plain(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return address
}
