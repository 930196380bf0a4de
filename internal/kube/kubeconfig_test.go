package kube

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// TestKubeconfigIsReadAsItChanges changes the token, the CA or the server in the
// kubeconfig of a running watch.
func TestKubeconfigIsReadAsItChanges(t *testing.T) {
	t.Parallel()
	type state struct {
		api   *apiServer
		ca    *authority
		token string
	}
	for name, c := range map[string]struct {
		// move changes the server, and returns the new content of the file.
		move func(t *testing.T, before state) state
	}{
		"token": {move: func(_ *testing.T, s state) state {
			s.token = "the-next-token"
			s.api.set(func() { s.api.token = s.token })
			return s
		}},
		"authority": {move: func(_ *testing.T, s state) state {
			s.ca = newAuthority()
			s.api.set(func() { s.api.cert = s.ca.issue() })
			return s
		}},
		"server": {move: func(t *testing.T, s state) state {
			s.api = newAPIServer(t, s.ca)
			s.api.set(func() { s.api.token = s.token })
			return s
		}},
		"all of it": {move: func(t *testing.T, s state) state {
			s.ca, s.token = newAuthority(), "the-next-token"
			s.api = newAPIServer(t, s.ca)
			s.api.set(func() { s.api.token = s.token })
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			write := func(s state) {
				replaceFile(t, file, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
					"users: [{name: u, user: {token: %s}}]\nclusters: [{name: c, cluster: {server: '%s', certificate-authority-data: %s}}]\n",
					s.token, s.api.url(), base64.StdEncoding.EncodeToString(s.ca.pem)))
			}
			ca := newAuthority()
			before := state{newAPIServer(t, ca), ca, secret}
			before.api.set(func() { before.api.token = secret })
			before.api.apply("a", "v1", "")
			write(before)
			b := &bench{api: before.api, metrics: NewMetrics("test", "test_failures_total")}
			client := clientWith(t, ClientConfig{
				Access: config.Access{Kubeconfig: file}, UserAgent: "test", Bounds: testBounds,
				Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
			})
			b.watchBy(client)
			b.run(t)
			eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}) })

			replaceFile(t, file, []byte("{"+secret))
			eventually(t, "a warning about the invalid file", func() bool {
				return strings.Contains(b.log.String(), "kubeconfig is invalid, its last valid content stays in use")
			})
			before.api.apply("b", "v1", "")
			eventually(t, "the watch to go on with a broken file", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
			before.api.http.CloseClientConnections()
			before.api.apply("c", "v1", "")
			eventually(t, "a watch to begin with a broken file", func() bool { return len(b.nodes()) == 3 })

			requests := len(before.api.seen())
			after := c.move(t, before)
			if after.api != before.api {
				// As another address of the same cluster.
				requests = 0
				for _, name := range []string{"a", "b", "c"} {
					after.api.apply(name, "v1", "")
				}
			}
			write(after)
			eventually(t, "a watch by the new file", func() bool { return len(after.api.seen()) > requests })
			after.api.apply("d", "v2", "")
			eventually(t, "what is new", func() bool {
				for _, n := range b.nodes() {
					if n == (node{"d", "v2"}) {
						return b.watch.Err() == nil
					}
				}
				return false
			})
			if log := b.log.String(); strings.Count(log, "kubeconfig is invalid") != 1 || strings.Contains(log, secret) || strings.Contains(log, "the-next-token") {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

func TestOtherPrefix(t *testing.T) {
	for _, c := range [][4]string{
		{"/api/v1/nodes", "", "", "/api/v1/nodes"},
		{"/api/v1/nodes", "", "/k8s/c1", "/k8s/c1/api/v1/nodes"},
		{"/k8s/c1/api/v1/nodes", "/k8s/c1", "/k8s/c2/", "/k8s/c2/api/v1/nodes"},
		{"/k8s/c1/api/v1/nodes", "/k8s/c1/", "/", "/api/v1/nodes"},
	} {
		if got := otherPrefix(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%q from %q to %q is %q, want %q", c[0], c[1], c[2], got, c[3])
		}
	}
}

// TestMalformedKubeconfigIsNotQuoted parses kubeconfigs with a misplaced secret.
func TestMalformedKubeconfigIsNotQuoted(t *testing.T) {
	const start = "apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n"
	for content, want := range map[string]string{
		start + "    token: \"secret-words\n":          "line ",
		start + "    token: secret-words: x\n":         "line 6: invalid YAML",
		start + "    token: [secret-words]\n":          "users.user.token can't be of type array",
		start + "    token: 12345678901234567890123\n": "users.user.token can't be of type number",
		start + "    client-key-data: secret-words\n":  "is not base64",
		"users:\n- name: u\n  user: secret-words\n":    "users.user can't be of type string",
		"secret-words":                                   "not valid YAML or JSON of kind Config",
		"apiVersion: v1\nkind: secret-words\n":           "not valid YAML or JSON of kind Config",
		"apiVersion: secret-words\nkind: Config\n":       "not valid YAML or JSON of kind Config",
		"a: *secret-words\n":                             "not valid YAML",
		"a: !!secret-words x\n":                          "",
		"a: &secret-words\n\tb: secret-words\n":          "line 2: invalid YAML",
		`{"apiVersion":"v1","users":["secret-words"`:     "line 1: invalid YAML",
		start + "    secret-words: secret-words\n  x: 1": "",
	} {
		_, err := ParseKubeconfig("/k", []byte(content))
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/k") || strings.Contains(err.Error(), "secret-words") {
			t.Errorf("%q: %v", content, err)
		}
	}
}
