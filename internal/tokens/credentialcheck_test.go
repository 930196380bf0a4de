package tokens

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// TestCredentialChecks requests reports of a remote that changes its mind, and of one that doesn't
// answer.
func TestCredentialChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, refused := 0, error(nil)
		checks := &CredentialChecks{now: time.Now, remotes: []*credentialCheck{
			{name: "gcp", ask: func(context.Context) error { asked++; return refused }},
			{name: "silent", ask: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		}}
		first := checks.Report()
		if g := first["gcp"]; g.Asked == nil || g.Error != "" || asked != 1 {
			t.Errorf("got %+v after %d requests", g, asked)
		}
		if s := first["silent"]; s.Asked != nil || s.Error != "" {
			t.Errorf("a remote that hasn't answered yet: %+v", s)
		}
		refused = errors.New("get version: Unauthorized")
		if g := checks.Report()["gcp"]; g.Error != "" || asked != 1 {
			t.Errorf("it is asked again at once: %+v", g)
		}
		time.Sleep(checkSpacing)
		again := checks.Report()
		if g := again["gcp"]; g.Error != refused.Error() || asked != 2 {
			t.Errorf("got %+v after %d requests", g, asked)
		}
		if s := again["silent"]; s.Error != context.DeadlineExceeded.Error() {
			t.Errorf("a remote that doesn't answer: %+v", s)
		}
		synctest.Wait()
		time.Sleep(checkTimeout)
	})
}

// TestCredentialCheckUsesTheTokenOnDisk replaces the token file of a remote by one with an invalid
// token: the next request uses that one, although the first was accepted.
func TestCredentialCheckUsesTheTokenOnDisk(t *testing.T) {
	remote, ca := startRemote(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer valid" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	remote.Access.CAFile, remote.Access.TokenFile = write("ca", string(ca)), write("token", "valid")
	ask := asker(kube.ClientConfig{Access: remote.Access}, []string{"/version"})
	if err := ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	write("token", "replaced")
	if err := ask(t.Context()); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("with the replaced token: %v", err)
	}
	write("token", "valid")
	if err := ask(t.Context()); err != nil {
		t.Errorf("with the token back: %v", err)
	}
}
