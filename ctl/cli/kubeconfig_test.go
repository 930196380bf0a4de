package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// token has the form of an API server's token.
const token = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkFCQ0RFRkcifQ.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50Iiwic3ViIjoic3lzdGVtOnNlcnZpY2VhY2NvdW50OmRlZmF1bHQ6YWRtaW4iLCJhdWQiOiJodHRwczovL2t1YmVybmV0ZXMifQ.c2VjcmV0LXNpZ25hdHVyZQ"

// TestTokensInAKubeconfigAreNotPrinted puts a token where each other value is expected.
func TestTokensInAKubeconfigAreNotPrinted(t *testing.T) {
	exec := func(changed string) string {
		fields := map[string]string{"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "semaphore-none"}
		fields[changed] = "TOKEN"
		return fmt.Sprintf("exec: {apiVersion: %s, interactiveMode: %s, command: %s}", fields["apiVersion"], fields["interactiveMode"], fields["command"])
	}
	const user, server = "token: TOKEN", `server: "https://127.0.0.1:1"`
	for name, c := range map[string]struct{ old, new, want string }{
		"server":                     {server, "server: TOKEN", "not the URL of an API server"},
		"server with a scheme":       {server, "server: https://TOKEN", "not the URL of an API server"},
		"a password in the server":   {server, "server: https://user:TOKEN@127.0.0.1:1", "with a user or password is not supported"},
		"certificate-authority":      {server, server + ", certificate-authority: TOKEN", "a token as certificate-authority"},
		"certificate-authority-data": {server, server + ", certificate-authority-data: TOKEN", "not base64"},
		"proxy-url":                  {server, server + ", proxy-url: TOKEN", "<proxy-url>"},
		"tokenFile":                  {user, "tokenFile: TOKEN", "a token as tokenFile"},
		"a file":                     {user, "client-certificate: TOKEN, client-key: TOKEN", "a token as client-certificate"},
		"client-key-data":            {user, "client-key-data: TOKEN", "not base64"},
		"exec":                       {user, "exec: TOKEN", "users.user.exec can't be of type string"},
		"exec command":               {user, exec("command"), "a token as command of exec"},
		"exec apiVersion":            {user, exec("apiVersion"), "a token as apiVersion of exec"},
		"exec interactiveMode":       {user, exec("interactiveMode"), "a token as interactiveMode of exec"},
		"auth-provider":              {user, "auth-provider: {name: TOKEN}", "a token as name of auth-provider"},
		"the issuer":                 {user, "auth-provider: {name: oidc, config: {idp-issuer-url: TOKEN, client-id: c, id-token: TOKEN, refresh-token: TOKEN}}", "a token as idp-issuer-url"},
		"a list":                     {user, "token: [TOKEN]", "users.user.token can't be of type array"},
		"a map":                      {user, "token: {TOKEN: x}", "users.user.token can't be of type object"},
		"user of the context":        {"user: u", "user: TOKEN", "a token as a name"},
		"cluster of the context":     {"cluster: a,", "cluster: TOKEN,", "a token as a name"},
		"another context":            {"users:", "- {name: TOKEN, context: {cluster: a}}\nusers:", "a token as a name"},
		"kind":                       {"kind: Config", "kind: TOKEN", "not valid YAML or JSON"},
		"a line":                     {"clusters:", "TOKEN", "invalid YAML"},
		"a path":                     {user, "tokenFile: /some/0123456789abcdef", "open <tokenFile>: no such file"},
		"two methods":                {user, "token: TOKEN, username: someone, password: TOKEN", "more than one authentication method"},
		"no such cluster":            {"cluster: a,", "cluster: b,", `its cluster "b" isn't in the kubeconfig`},
		"no such user":               {"user: u", "user: v", `its user "v" isn't in the kubeconfig`},
		"no server":                  {server, "", "not the URL of an API server"},
	} {
		t.Run(name, func(t *testing.T) {
			const base = "apiVersion: v1\nkind: Config\nclusters:\n- {name: a, cluster: {" + server + "}}\n" +
				"contexts:\n- {name: aws, context: {cluster: a, user: u}}\nusers:\n- {name: u, user: {" + user + "}}\n"
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(strings.Replace(base, c.old, c.new, 1), "TOKEN", token)), 0o600); err != nil {
				t.Fatal(err)
			}
			s := NewSession(nil, io.Discard, io.Discard)
			s.kubeconfig = file
			_, err := s.Clusters([]string{"aws"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, expected %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), token[:20]) {
				t.Errorf("it prints the token: %v", err)
			}
		})
	}
}

// TestNoKubeconfig has no file, and one without contexts.
func TestNoKubeconfig(t *testing.T) {
	folder := t.TempDir()
	empty := filepath.Join(folder, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", folder)
	for name, c := range map[string]struct{ variable, flag, want string }{
		"neither":              {folder + "/a" + string(os.PathListSeparator) + folder + "/b", "", "there is no kubeconfig: " + folder + "/a or " + folder + "/b doesn't exist; select one with --kubeconfig"},
		"an empty one":         {empty, "", "the kubeconfig " + empty + " has no contexts"},
		"an empty one by flag": {"", empty, "the kubeconfig " + empty + " has no contexts"},
		"a missing one":        {"", folder + "/c", "no such file"},
	} {
		t.Setenv("KUBECONFIG", c.variable)
		s := NewSession(nil, io.Discard, io.Discard)
		s.kubeconfig = c.flag
		if _, err := s.Clusters([]string{"aws"}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, expected %q", name, err, c.want)
		}
	}
}

// authorization serves versions and records the credentials of requests.
func authorization(into *string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*into = r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)
	}
}

// TestCredentialPlugins gets credentials from client-go's auth provider for OpenID Connect, and
// from another program.
func TestCredentialPlugins(t *testing.T) {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	identity := part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(time.Hour).Unix())) + "." + part("signature")
	program := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"issued"}}'`+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"{auth-provider: {name: oidc, config: {idp-issuer-url: 'https://issuer.example', client-id: c, id-token: " + identity + "}}}": "Bearer " + identity,
		"{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: '" + filepath.ToSlash(program) + "'}}": "Bearer issued",
	} {
		var got string
		c, _, _ := clusterOf(t, authorization(&got), user)
		if _, err := c.Client.Discovery().ServerVersion(); err != nil || got != want {
			t.Errorf("%v: credentials %q, expected %q", err, got, want)
		}
	}
}

// TestUnanswered explains why an API server doesn't answer.
func TestUnanswered(t *testing.T) {
	answer := func(code int, reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		user   string
		change func(kubeconfig string) string
		what   string
		remedy string
	}{
		"another authority": {answer(200, ""), "{token: x}", func(k string) string {
			before, after, _ := strings.Cut(k, "certificate-authority-data: ")
			_, after, _ = strings.Cut(after, "}")
			return before + "certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte(kubetest.Certificate(t))) + "}" + after
		}, "isn't of the certificate authority in the kubeconfig", "certificate-authority-data of context aws is of this cluster"},
		"another name": {answer(200, ""), "{token: x}", func(k string) string {
			return strings.Replace(k, "server:", "tls-server-name: api.example, server:", 1)
		}, "is for other names", "tls-server-name"},
		"no authority":     {answer(200, ""), "{token: x}", func(k string) string { return strings.Replace(k, "certificate-authority-data", "x", 1) }, "isn't of the certificate authority", ""},
		"bad credentials":  {answer(401, "Unauthorized"), "{token: x}", nil, "doesn't accept the credentials", "log in again"},
		"nothing allowed":  {answer(403, "Forbidden"), "{token: x}", nil, "denies everything", "auth can-i --list"},
		"a missing plugin": {answer(200, ""), "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: semaphore-none}}", nil, "no credentials for", "--context aws get namespaces"},
		"no proxy": {answer(200, ""), "{token: x}", func(k string) string {
			return strings.Replace(k, "server:", "proxy-url: 'http://127.0.0.1:1', server:", 1)
		}, "not reached through the proxy", "HTTPS_PROXY"},
		"nothing listens": {answer(200, ""), "{token: x}", func(k string) string {
			before, _, _ := strings.Cut(k, "server:")
			_, after, _ := strings.Cut(k, ", certificate-authority-data")
			return before + `server: "https://127.0.0.1:1", certificate-authority-data` + after
		}, "doesn't answer: ", "check that it runs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s, _ := clusterOf(t, c.answer, c.user)
			if c.change != nil {
				content, err := os.ReadFile(s.kubeconfig)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(s.kubeconfig, []byte(c.change(string(content))), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			clusters, err := s.Clusters([]string{"aws"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = clusters[0].Client.Discovery().ServerVersion()
			if err == nil {
				t.Fatal("it answers")
			}
			got, is := errors.AsType[*Advised](clusters[0].Unanswered(err))
			if !is || !strings.Contains(got.Error(), c.what) || !strings.Contains(got.Remedy, c.remedy) {
				t.Errorf("%v; %q", got, got.Remedy)
			}
		})
	}
}

// TestLines prints commands that work in the same way as this run.
func TestLines(t *testing.T) {
	s := &Session{}
	if got := s.Line("leave", "aws", "g p"); got != "semaphorectl leave aws 'g p'" {
		t.Error(got)
	}
	s.kubeconfig, s.contexts = "k", map[string]string{"aws": "prod/eu", "merit": "x"}
	if got := s.Line("leave", "aws", "gcp"); got != "semaphorectl leave aws gcp --kubeconfig k --context aws=prod/eu" {
		t.Error(got)
	}
	if got := (Access{"prod/eu", "k"}).Kubectl("get %s", "-x"); got != "kubectl --kubeconfig k --context prod/eu get '<a name that begins with a dash>'" {
		t.Error(got)
	}
}

// TestInterrupted prints one line with the hint, not the errors of all requests.
func TestInterrupted(t *testing.T) {
	errs := errors.Join(fmt.Errorf("read a: %w", context.Canceled), fmt.Errorf("read b: %w", context.Canceled))
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no hint": {errs, "✗ interrupted\n"},
		"a hint":  {fmt.Errorf("step: %w", Hint(errs, "nothing was changed")), "✗ interrupted: nothing was changed\n"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		s := NewSession(nil, &out, &out)
		root := &cobra.Command{Use: "semaphorectl"}
		root.AddCommand(&cobra.Command{Use: "do", RunE: func(*cobra.Command, []string) error { cancel(); return c.err }})
		code := Run(ctx, s, root, []string{"do"})
		if code != process.ExitFaults || out.String() != c.want {
			t.Errorf("%s: exit code %d, %q", name, code, out.String())
		}
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Count(0, "fault"): "0 faults", Count(1, "fault"): "1 fault", Count(2, "fault"): "2 faults",
		Are(1, "fault"): "1 fault is", Are(3, "fault"): "3 faults are",
		Of(1, 1, "path"): "1 of 1 path is", Of(0, 1, "pod"): "0 of 1 pod is", Of(1, 4, "path"): "1 of 4 paths is", Of(3, 4, "path"): "3 of 4 paths are",
		And(): "", And("a"): "a", And("a", "b"): "a and b", And("a", "b", "c"): "a, b and c",
		Some(2, "a", "b"): "a and b", Some(2, "a", "b", "c", "d"): "a, b and 2 more",
	} {
		if got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
