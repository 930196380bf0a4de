package tunnel

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

const (
	keySize = 32 // bytes of a Curve25519 key, RFC 7748 section 5
	keyText = 44 // characters of a key in base64, padding included
)

// Key is the public Curve25519 key of a device or a peer.
type Key [keySize]byte

// ParseKey reads a public key as wg(8) prints it: 44 characters of padded
// standard base64. It refuses the all-zero key, which no device can have and
// which WireGuard reads as "no key".
func ParseKey(s string) (Key, error) {
	b, err := decodeKey([]byte(s))
	if err != nil {
		return Key{}, fmt.Errorf("public key: %w", err)
	}
	if b == (Key{}) {
		return Key{}, errors.New("public key: all bytes are zero")
	}
	return b, nil
}

// String returns the key in base64, as wg(8) prints it.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero reports whether the key is all zero, that is, no key.
func (k Key) IsZero() bool { return k == Key{} }

// Compare orders keys by their bytes; it suits slices.SortFunc.
func (k Key) Compare(other Key) int { return bytes.Compare(k[:], other[:]) }

// MarshalText returns the key in base64, and nothing for the zero key.
func (k Key) MarshalText() ([]byte, error) {
	if k.IsZero() {
		return []byte{}, nil
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (k *Key) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*k = Key{}
		return nil
	}
	parsed, err := ParseKey(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}

// decodeKey never puts its input into the error: it may be a private key.
func decodeKey(text []byte) ([keySize]byte, error) {
	var key [keySize]byte
	if len(text) != keyText {
		return key, fmt.Errorf("%d characters, want %d of base64", len(text), keyText)
	}
	// The standard decoder skips line breaks, so the length alone doesn't
	// prove that there are 32 bytes.
	var buf [keyText]byte
	n, err := base64.StdEncoding.Strict().Decode(buf[:], text)
	if err != nil || n != keySize {
		return key, errors.New("not 32 bytes of base64")
	}
	copy(key[:], buf[:])
	return key, nil
}

const redacted = "(private key)"

// PrivateKey is a device's secret. Printing, logging and marshalling give a placeholder;
// only this package can read the bytes. The zero value is no key.
type PrivateKey struct {
	// A function, since package fmt doesn't call the methods of unexported fields: it would
	// print the bytes of a key within a struct, for some verbs also behind a pointer.
	reveal func() [keySize]byte
}

func hide(secret [keySize]byte) PrivateKey {
	return PrivateKey{func() [keySize]byte { return secret }}
}

// newPrivateKey returns a fresh key from the system's random source.
func newPrivateKey() PrivateKey {
	var secret [keySize]byte
	rand.Read(secret[:]) //nolint:errcheck // crypto/rand.Read never returns an error; it ends the process instead.
	// Clamped like the kernel does (RFC 7748 section 5), so that file and device are equal.
	secret[0] &= 248
	secret[31] = secret[31]&127 | 64
	return hide(secret)
}

// parsePrivateKey reads the contents of a key file: base64, with or without
// white space around it.
func parsePrivateKey(text []byte) (PrivateKey, error) {
	secret, err := decodeKey(bytes.TrimSpace(text))
	if err != nil {
		return PrivateKey{}, err
	}
	if secret == [keySize]byte{} {
		return PrivateKey{}, errors.New("all bytes are zero")
	}
	return hide(secret), nil
}

// text returns the contents of the key file.
func (k PrivateKey) text() []byte {
	secret := k.reveal()
	return append(base64.StdEncoding.AppendEncode(nil, secret[:]), '\n')
}

// Public returns the public key that belongs to k.
func (k PrivateKey) Public() Key {
	secret := k.reveal()
	private, err := ecdh.X25519().NewPrivateKey(secret[:])
	if err != nil {
		// Only a wrong length is an error, and the type has the right one.
		panic(err)
	}
	return Key(private.PublicKey().Bytes())
}

// String returns a placeholder.
func (PrivateKey) String() string { return redacted }

// Format writes a placeholder, whatever the verb.
func (PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue returns a placeholder.
func (PrivateKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder. JSON, YAML and XML use it too.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }
