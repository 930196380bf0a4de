package kube

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

func TestLazyClientWaitsForItsConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	client := LazyClient(ClientConfig{Access: config.Access{Kubeconfig: path}, UserAgent: "test"})
	for range 2 {
		if _, err := client(); err == nil || !strings.Contains(err.Error(), path) {
			t.Fatalf("error %v, want one that names the file", err)
		}
	}
	content := `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: "` + base64.StdEncoding.EncodeToString(newAuthority().pem) + `"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := client()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if second, err := client(); err != nil || second != first {
		t.Errorf("the second call made another client: %v, %v", second, err)
	}
}
