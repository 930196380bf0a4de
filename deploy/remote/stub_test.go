package remote_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stub stands for kubectl. It gives the answers that are in files of $STUB, named
// by context, verb, resource and name; writes its arguments and what is piped into
// it to $STUB/written where they would change something; and says on stderr what
// $STUB/stderr holds.
const stub = `#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in
    --context) context=$2; shift 2 ;;
    --namespace) shift 2 ;;
    --request-timeout=*|--disable-compression) shift ;;
    *) break ;;
  esac
done
cat "$STUB/stderr" >&2 2>/dev/null
case "$1 $2" in
  "get secret"|"get configmap") cat "$STUB/$context.$1.$2.$3" 2>/dev/null || [ -n "$(ls "$STUB")" ] ;;
  "create token") cat "$STUB/$context.$1.$2.$3" ;;
  *)
    { printf '%s:' "$context"; printf ' %s' "$@"; printf '\n'; } >> "$STUB/written"
    case " $* " in *" /dev/stdin "*|*" - "*) cat >> "$STUB/written"; echo >> "$STUB/written" ;; esac
    echo "$2/$3 patched"
    ;;
esac
`

// neighbours are clusters whose API servers give any answer.
type neighbours struct {
	folder string
	// path is where commands are found: by default the stub and all of this machine.
	path string
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	n := &neighbours{folder: t.TempDir()}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(stub), 0o755); err != nil {
		t.Fatal(err)
	}
	n.path = bin + ":" + os.Getenv("PATH")
	n.write(t, "stderr", "")
	return n
}

func (n *neighbours) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.folder, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// handOver runs the script. It returns what was printed, and what was written to
// API servers.
func (n *neighbours) handOver(t *testing.T, args ...string) (printed, written string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./hand-over", args...)
	cmd.Env = []string{"PATH=" + n.path, "STUB=" + n.folder}
	out, err := cmd.CombinedOutput()
	changes, readErr := os.ReadFile(filepath.Join(n.folder, "written"))
	if readErr != nil && !os.IsNotExist(readErr) {
		t.Fatal(readErr)
	}
	return string(out), string(changes), err
}

// token is one in form; nobody has signed it.
func token(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{encode([]byte(`{"alg":"ES256"}`)), encode([]byte(payload)), encode([]byte("signature"))}, ".")
}

func encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// authority makes the certificate of an authority, in PEM.
func authority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
