package tunnel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestParseKey(t *testing.T) {
	valid := "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	key, err := ParseKey(valid)
	if err != nil {
		t.Fatal(err)
	}
	if key.String() != valid {
		t.Errorf("String() = %s, want %s", key, valid)
	}
	invalid := map[string]string{
		"empty":                "",
		"31 bytes":             base64.StdEncoding.EncodeToString(make([]byte, 31)),
		"33 bytes":             base64.StdEncoding.EncodeToString(make([]byte, 33)),
		"all zero":             base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"white space around":   valid + "\n",
		"line breaks inside":   valid[:20] + "\n\n\n\n" + valid[24:],
		"URL alphabet":         strings.Replace(valid, "I", "_", 1),
		"no padding":           valid[:43],
		"stray bits":           valid[:42] + "h=",
		"hexadecimal":          strings.Repeat("ab", 32),
		"a megabyte":           strings.Repeat("A", 1<<20),
		"not base64":           strings.Repeat("!", 44),
		"padding in the front": "=" + valid[:43],
	}
	for name, text := range invalid {
		t.Run("refuses "+name, func(t *testing.T) {
			if key, err := ParseKey(text); err == nil {
				t.Errorf("%q is accepted as %s", text, key)
			} else if len(err.Error()) > 200 {
				t.Errorf("the error has %d characters", len(err.Error()))
			}
		})
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=")
	f.Add("")
	f.Add(strings.Repeat("\n", 44))
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParseKey(text)
		if err != nil {
			return
		}
		if key.String() != text {
			t.Errorf("%q parses to %s", text, key)
		}
		if key.IsZero() {
			t.Errorf("%q parses to the zero key", text)
		}
	})
}

func TestKeyMarshalsAsBase64(t *testing.T) {
	want := newPrivateKey().Public()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != `"`+want.String()+`"` {
		t.Errorf("marshalled to %s", text)
	}
	var got Key
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("unmarshalled to %s, %v", got, err)
	}
	text, err = json.Marshal(Key{})
	if err != nil || string(text) != `""` {
		t.Errorf("the zero key is marshalled to %s, %v", text, err)
	}
	if err := json.Unmarshal(text, &got); err != nil || !got.IsZero() {
		t.Errorf("the zero key is unmarshalled to %s, %v", got, err)
	}
	if json.Unmarshal([]byte(`"AAAA"`), &got) == nil {
		t.Error("a short key unmarshals without an error")
	}
}

func TestPrivateKeyMatchesWireGuard(t *testing.T) {
	key := newPrivateKey()
	reference, err := wgtypes.ParseKey(strings.TrimSpace(string(key.text())))
	if err != nil {
		t.Fatal(err)
	}
	if key.Public() != Key(reference.PublicKey()) {
		t.Errorf("public key %s, want %s", key.Public(), reference.PublicKey())
	}
	again, err := parsePrivateKey(key.text())
	if err != nil || again.Public() != key.Public() {
		t.Errorf("key file contents read back: %v", err)
	}
	if newPrivateKey().Public() == key.Public() {
		t.Error("two new keys are the same")
	}
}

func TestParsePrivateKeyRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":      "",
		"half a key":   "xTIBA5rboUvnH4htodjb6e",
		"zeros":        base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"NUL bytes":    strings.Repeat("\x00", 45),
		"two keys":     strings.Repeat(string(newPrivateKey().text()), 2),
		"other format": "PrivateKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
	} {
		if _, err := parsePrivateKey([]byte(text)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// All ways by which a private key could get into a log line, an error or a status page.
func TestPrivateKeyRedactsItself(t *testing.T) {
	key := newPrivateKey()
	secret := key.reveal()
	secrets := []string{
		strings.TrimSpace(string(key.text())),
		fmt.Sprintf("%x", secret[:]),
		fmt.Sprintf("%X", secret[:]),
		strings.Trim(fmt.Sprintf("%d", secret), "[]"),
		fmt.Sprintf("%#v", secret),
		string(secret[:]),
	}
	holder := struct{ Key PrivateKey }{key}
	pointer := struct{ Key *PrivateKey }{&key}
	hidden := struct{ key PrivateKey }{key}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%o", "%c", "%U", "%p", "%t"} {
		fmt.Fprintf(&out, strings.Repeat(verb+" ", 5)+"\n", key, holder, &key, hidden, &hidden)
	}
	fmt.Fprintln(&out, key, holder, key.String())
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("key", "key", key, "pointer", &key, "holder", holder, "hidden", hidden)
	}
	for _, v := range []any{key, &key, holder, pointer, map[string]any{"key": key}, []PrivateKey{key}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
	}
	for _, form := range secrets {
		if strings.Contains(out.String(), form) {
			t.Errorf("the key shows as %q in:\n%s", form, out.String())
		}
	}
	if !strings.Contains(out.String(), redacted) {
		t.Error("there is no placeholder")
	}
}

func FuzzParsePrivateKey(f *testing.F) {
	f.Add([]byte("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n"))
	f.Add([]byte("xTIBA5rboUvn"))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := parsePrivateKey(text)
		if err != nil {
			if len(text) > 8 && strings.Contains(err.Error(), string(text)) {
				t.Errorf("the error shows the file: %v", err)
			}
			return
		}
		if again, err := parsePrivateKey(key.text()); err != nil || again.Public() != key.Public() {
			t.Errorf("%q doesn't read back: %v", text, err)
		}
	})
}
