// Package clustertest stands in for clusters in tests of programs.
package clustertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Token is the one that DeadAccess has. It belongs in no log.
const Token = "very-secret-token"

// DeadAccess names an API server that nobody serves.
func DeadAccess(t testing.TB) config.Access {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const kubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "dead",
		"contexts": [{"name": "dead", "context": {"cluster": "dead", "user": "nobody"}}],
		"clusters": [{"name": "dead", "cluster": {"server": "https://127.0.0.1:1"}}],
		"users": [{"name": "nobody", "user": {"token": "` + Token + `"}}]}`
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Access{Kubeconfig: path}
}
