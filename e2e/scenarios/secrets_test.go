package scenarios_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// testPrivateKeysStay looks for the private keys of an agent's devices in all its output, in
// the encodings of WireGuard's tools and its socket.
func testPrivateKeysStay(t *testing.T, agents ...*programs.Agent) {
	for _, a := range agents {
		folder := filepath.Join(a.Node.VarLib(), programs.WireGuard)
		files, err := filepath.Glob(filepath.Join(folder, "*.key"))
		must(t, err)
		if len(files) == 0 {
			t.Fatalf("%s has no private key", a.Node.Name)
		}
		// An engine that it has started writes there, too.
		places := map[string]string{"its log": a.Process().Log()}
		if engine := a.Engine(); engine != nil {
			places["its engine's log"] = engine.Log()
		}
		for _, path := range []string{"/status", "/metrics", "/healthz", "/readyz"} {
			body, _, err := a.Ask(t.Context(), path)
			must(t, err)
			places[path] = body
		}
		node, err := a.Node.Object(t.Context())
		must(t, err)
		object, err := json.Marshal(node)
		must(t, err)
		places["its Node"] = string(object)
		others, err := filepath.Glob(filepath.Join(folder, "*.json"))
		must(t, err)
		for _, path := range others {
			content, err := os.ReadFile(path)
			must(t, err)
			places[filepath.Base(path)] = string(content)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			must(t, err)
			text := strings.TrimSpace(string(content))
			key, err := base64.StdEncoding.DecodeString(text)
			if err != nil || len(key) != 32 {
				t.Fatalf("%s of %s holds no key", filepath.Base(file), a.Node.Name)
			}
			for place, said := range places {
				if strings.Contains(said, text) || strings.Contains(strings.ToLower(said), hex.EncodeToString(key)) {
					t.Errorf("the key in %s of %s is in %s too", filepath.Base(file), a.Node.Name, place)
				}
			}
		}
	}
}
