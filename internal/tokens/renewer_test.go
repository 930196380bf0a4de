package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

const wireguard = "semaphore-wireguard-remotes"

// startRemote starts the API server of a remote, and returns the CA certificate for the
// Secret.
func startRemote(t *testing.T, answer http.HandlerFunc) (remote Remote, ca []byte) {
	t.Helper()
	server := httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return Remote{Name: "gcp", Access: config.Access{APIURL: server.URL}},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// answer is a TokenRequest that was granted.
func answer(t testing.TB, w http.ResponseWriter, token string) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	if err := json.NewEncoder(w).Encode(&authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: token}}); err != nil {
		t.Error(err)
	}
}

// fixture is a renewer of an own cluster with one Secret.
type fixture struct {
	*Renewer
	log *logtest.Buffer
}

func newFixture(t *testing.T, data map[string][]byte, remotes ...Remote) *fixture {
	t.Helper()
	log := new(logtest.Buffer)
	return &fixture{log: log, Renewer: &Renewer{
		Client: clientset.Client(fake.NewClientset(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: wireguard, Namespace: "sys-semaphore", UID: "u"}, Data: data,
		})),
		Namespace: "sys-semaphore", Remotes: remotes, Now: time.Now,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}}
}

func (f *fixture) stored(t *testing.T, key string) string {
	t.Helper()
	secret, err := f.Client.Secrets("sys-semaphore").Get(t.Context(), wireguard, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(secret.Data[key])
}

// TestRenewal renews for a good remote, an unreachable one, and one whose token has
// expired.
func TestRenewal(t *testing.T) {
	now := time.Now()
	present, next := agents(now.Add(-11*24*time.Hour)), agents(now)
	var asked authenticationv1.TokenRequest
	remote, ca := startRemote(t, func(w http.ResponseWriter, r *http.Request) {
		const path = "/api/v1/namespaces/sys-semaphore/serviceaccounts/semaphore-wireguard-remote-aws/token"
		if r.URL.Path != path || r.Header.Get("Authorization") != "Bearer "+issue(t, present) {
			t.Errorf("asked %s %s", r.Method, r.URL)
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		answer(t, w, issue(t, next))
	})
	f := newFixture(t, map[string][]byte{
		"gcp.token": []byte(issue(t, present) + "\n"), "gcp.ca.crt": ca,
		"away.token": []byte(issue(t, present)), "away.ca.crt": ca,
		"late.token": []byte(issue(t, agents(now.Add(-31*24*time.Hour)))), "late.ca.crt": ca,
		"bad.token": []byte("secret words"), "static.token": []byte(sign(`{"iss":"kubernetes/serviceaccount"}`)),
		"fresh.token": []byte(issue(t, agents(now))), "fresh.ca.crt": ca,
	}, remote, Remote{Name: "away", Access: config.Access{APIURL: "https://127.0.0.1:1"}}, Remote{Name: "late", Access: remote.Access}, Remote{Name: "bad", Access: remote.Access},
		Remote{Name: "static", Access: remote.Access}, Remote{Name: "fresh", Access: remote.Access}, Remote{Name: "none", Access: remote.Access})
	err := f.Run(t.Context())
	if f.stored(t, "gcp.token") != issue(t, next) {
		t.Errorf("not renewed: %v", err)
	}
	if got := *asked.Spec.ExpirationSeconds; got != 30*24*60*60 || asked.Spec.BoundObjectRef.Name != present.Secret.Name || asked.Spec.BoundObjectRef.UID != "s" {
		t.Errorf("asked for %+v", asked.Spec)
	}
	for _, want := range []string{
		wireguard + " of away: renew the token that expires at ", wireguard + " of late: current token expired at",
		wireguard + " of bad: current token: not a JSON Web Token",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
	if strings.Count(err.Error(), wireguard) != 3 {
		t.Errorf("more failed: %v", err)
	}
	if log := f.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "token renewed") {
		t.Errorf("log:\n%s", log)
	}
	if all := err.Error() + f.log.String(); strings.Contains(all, "eyJ") || strings.Contains(all, "secret words") {
		t.Error("a token is in the error")
	}
	f.log.Take()
	f.Remotes = f.Remotes[:1]
	if err := f.Run(t.Context()); err != nil || f.log.String() != "" {
		t.Errorf("renewed again: %v\n%s", err, f.log)
	}
}

// TestTokenFromTheFuture has a token that was issued after the time of this clock. Its age is
// unknown, so that it is renewed, and the run fails.
func TestTokenFromTheFuture(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for ahead, reported := range map[time.Duration]bool{time.Minute: false, 5 * time.Minute: false, 6 * time.Minute: true, 20 * 24 * time.Hour: true} {
		t.Run(ahead.String(), func(t *testing.T) {
			present, next := agents(now.Add(ahead)), agents(now.Add(ahead+time.Hour))
			remote, ca := startRemote(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, issue(t, next)) })
			f := newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, present)), "gcp.ca.crt": ca}, remote)
			f.Now = func() time.Time { return now }
			err := f.Run(t.Context())
			want := fmt.Sprintf("%s of gcp: current token was issued at %s, %s after the time of this node", wireguard, present.Issued.UTC().Format(time.RFC3339), ahead)
			if (err != nil) != reported || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, expected %t: %q", err, reported, want)
			}
			if renewed := f.stored(t, "gcp.token") == issue(t, next); renewed != reported {
				t.Errorf("renewed: %t", renewed)
			}
		})
	}
	t.Run("and its remote is unreachable", func(t *testing.T) {
		f := newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, agents(now.Add(time.Hour))))},
			Remote{Name: "gcp", Access: config.Access{APIURL: "https://127.0.0.1:1"}})
		for _, want := range []string{"current token was issued at", "renew the token that expires at"} {
			if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, expected %q", err, want)
			}
		}
	})
}

// TestHostileAnswers responds with something else than a new token.
func TestHostileAnswers(t *testing.T) {
	now := time.Now()
	present := agents(now.Add(-11 * 24 * time.Hour))
	changed := func(change func(*Claims)) http.HandlerFunc {
		claims := agents(now)
		change(claims)
		return func(w http.ResponseWriter, _ *http.Request) { answer(t, w, issue(t, claims)) }
	}
	text := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body) // The client may have had enough.
		}
	}
	token := func(token string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { answer(t, w, token) }
	}
	var elsewhere int
	trap := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	t.Cleanup(trap.Close)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"nothing":                {token(""), "invalid token in the response"},
		"words":                  {token("a b\nc"), "invalid token in the response"},
		"a huge token":           {token(strings.Repeat("x", 20_000)), "invalid token in the response"},
		"a token without an end": {token(sign(`{"sub":"x"}`)), "another account"},
		"another account's":      {changed(func(c *Claims) { c.Account = "x" }), "another account"},
		"another namespace's":    {changed(func(c *Claims) { c.Namespace = "x" }), "another account"},
		"bound to nothing":       {changed(func(c *Claims) { c.Secret = Bound{} }), "bound to another object"},
		"bound to a new Secret":  {changed(func(c *Claims) { c.Secret.UID = "x" }), "bound to another object"},
		"one that ends earlier":  {changed(func(c *Claims) { c.Expires = now.Add(time.Hour) }), "expires no later"},
		"the same one":           {token(issue(t, present)), "expires no later"},
		"no JSON":                {text(http.StatusCreated, "{"), "not a TokenRequest"},
		"a list":                 {text(http.StatusCreated, "[]"), "not a TokenRequest"},
		"without an end":         {text(http.StatusCreated, strings.Repeat(" ", maxAnswer+1)), "more than 65536 bytes"},
		"a refusal":              {text(http.StatusForbidden, `{"kind":"Status","message":"no \u001b[2J\u009b right"}`), `code 403: "no \x1b[2J\u009b right"`},
		"a long refusal":         {text(http.StatusForbidden, `{"message":"`+strings.Repeat("x", 10_000)+`"}`), "xxx"},
		"a refusal with the secret": {func(w http.ResponseWriter, r *http.Request) {
			text(http.StatusForbidden, fmt.Sprintf(`{"message":%q}`, r.Header.Get("Authorization")))(w, r)
		}, "code 403"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, trap.URL, http.StatusTemporaryRedirect)
		}, "response 307"},
	} {
		t.Run(name, func(t *testing.T) {
			remote, ca := startRemote(t, c.answer)
			f := newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, present)), "gcp.ca.crt": ca}, remote)
			err := f.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, expected %q", err, c.want)
			}
			if f.stored(t, "gcp.token") != issue(t, present) {
				t.Error("the token has changed")
			}
			if text := err.Error() + f.log.String(); strings.Contains(text, "eyJ") || strings.Contains(text, "\x1b") || len(text) > 1000 {
				t.Errorf("error: %q", text)
			}
		})
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
}

// TestOtherAuthority has a remote with a certificate of another CA.
func TestOtherAuthority(t *testing.T) {
	present := agents(time.Now().Add(-11 * 24 * time.Hour))
	remote, _ := startRemote(t, func(http.ResponseWriter, *http.Request) { t.Error("was asked") })
	for name, ca := range map[string][]byte{
		"none": nil, "words": []byte("words"), "much of nothing": []byte(strings.Repeat("\n", 1<<20)),
	} {
		f := newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, present)), "gcp.ca.crt": ca}, remote)
		if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAuthorityByURL serves the CA certificates at SEMAPHORE_REMOTE_<NAME>_CA_URL, with none,
// or others, in the Secret.
func TestAuthorityByURL(t *testing.T) {
	now := time.Now()
	present, next := agents(now.Add(-11*24*time.Hour)), agents(now)
	remote, ca := startRemote(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, issue(t, next)) })
	serves := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ca) }))
	t.Cleanup(serves.Close)
	// The servers of tests have one certificate, which the system trusts here.
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots) // read once in a process
	block, _ := pem.Decode(ca)
	sum := sha256.Sum256(block.Bytes)
	for name, c := range map[string]struct {
		pin, want string
	}{
		"any certificate":     {"", ""},
		"a pinned one":        {hex.EncodeToString(sum[:]), ""},
		"another one's print": {strings.Repeat("0", 64), "SHA-256 fingerprint"},
	} {
		t.Run(name, func(t *testing.T) {
			remote.Access.CAURL, remote.Access.CASHA256 = serves.URL, c.pin
			f := newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, present)), "gcp.ca.crt": []byte("words")}, remote)
			err := f.Run(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, expected %q", err, c.want)
			}
			if renewed := f.stored(t, "gcp.token") == issue(t, next); renewed != (c.want == "") {
				t.Errorf("renewed: %v", renewed)
			}
		})
	}
}

// TestTokenThatWasReplacedMeanwhile keeps a token that an operator installed during the
// request.
func TestTokenThatWasReplacedMeanwhile(t *testing.T) {
	now := time.Now()
	present := agents(now.Add(-11 * 24 * time.Hour))
	var f *fixture
	remote, ca := startRemote(t, func(w http.ResponseWriter, r *http.Request) {
		secrets := f.Client.Secrets("sys-semaphore")
		secret, err := secrets.Get(r.Context(), wireguard, metav1.GetOptions{})
		if err == nil {
			secret.Data["gcp.token"] = []byte("another one")
			_, err = secrets.Update(r.Context(), secret, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
		answer(t, w, issue(t, agents(now)))
	})
	f = newFixture(t, map[string][]byte{"gcp.token": []byte(issue(t, present)), "gcp.ca.crt": ca}, remote)
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "store the token") || strings.Contains(err.Error(), "eyJ") {
		t.Errorf("error %v", err)
	}
	if got := f.stored(t, "gcp.token"); got != "another one" {
		t.Errorf("it is %q", got)
	}
}
