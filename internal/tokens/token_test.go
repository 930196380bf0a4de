package tokens

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sign makes a token in form, of a payload.
func sign(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"ES256"}`)) + "." + encode([]byte(payload)) + "." + encode([]byte("signature"))
}

// issue makes a token of an account, in form.
func issue(t testing.TB, claims *Claims) string {
	t.Helper()
	k := map[string]any{"namespace": claims.Namespace, "serviceaccount": map[string]any{"name": claims.Account, "uid": "a"}}
	if claims.Secret.Name != "" {
		k["secret"] = map[string]any{"name": claims.Secret.Name, "uid": claims.Secret.UID}
	}
	payload, err := json.Marshal(map[string]any{"iat": claims.Issued.Unix(), "exp": claims.Expires.Unix(), "kubernetes.io": k})
	if err != nil {
		t.Fatal(err)
	}
	return sign(string(payload))
}

// agents is a token of the agents, issued at a time for 30 days.
func agents(at time.Time) *Claims {
	const name = "semaphore-wireguard-remote-aws"
	return &Claims{
		Issued: at.Truncate(time.Second), Expires: at.Truncate(time.Second).Add(30 * 24 * time.Hour),
		Namespace: "sys-semaphore", Account: name, AccountUID: "a", Secret: Bound{Name: name, UID: "s"},
	}
}

func TestParse(t *testing.T) {
	bound := agents(time.Unix(1_800_000_000, 0))
	got, err := Parse(issue(t, bound))
	if diff := cmp.Diff(bound, got); diff != "" || err != nil {
		t.Errorf("a bound token: %v (-want +got):\n%s", err, diff)
	}
	got, err = Parse(sign(`{"iss":"kubernetes/serviceaccount","sub":"system:serviceaccount:a:b"}`))
	if err != nil || !got.Expires.IsZero() {
		t.Errorf("a static token: %+v, %v", got, err)
	}
	const account = `,"kubernetes.io":{"namespace":"a","serviceaccount":{"name":"b"}}}`
	for name, token := range map[string]string{
		"nothing":             "",
		"words":               "a b c",
		"two parts":           "eyJh.eyJh",
		"four parts":          sign("{\"a\":1}") + ".eyJh",
		"a line break":        sign("{\"a\":1}") + "\n",
		"two lines":           sign("{\"a\":1}") + "\r\nX: y",
		"a list":              sign(`["a"]`),
		"other types":         sign(`{"exp":"tomorrow"}`),
		"a cut object":        sign(`{"exp":1`),
		"too long":            sign(`{"a":"` + strings.Repeat("x", maxToken) + `"}`),
		"expired before":      sign(`{"iat":10,"exp":9` + account),
		"no time of issue":    sign(`{"exp":9` + account),
		"a negative end":      sign(`{"iat":10,"exp":-1` + account),
		"an end past reason":  sign(`{"iat":10,"exp":9223372036854775807` + account),
		"an end out of range": sign(`{"iat":10,"exp":1e300` + account),
		"no account":          sign(`{"iat":10,"exp":20}`),
		"a path as namespace": sign(`{"iat":10,"exp":20,"kubernetes.io":{"namespace":"../x","serviceaccount":{"name":"b"}}}`),
		"a path as account":   sign(`{"iat":10,"exp":20,"kubernetes.io":{"namespace":"a","serviceaccount":{"name":"b/../c"}}}`),
		"a path as Secret":    sign(`{"iat":10,"exp":20,"kubernetes.io":{"namespace":"a","serviceaccount":{"name":"b"},"secret":{"name":"/"}}}`),
	} {
		if claims, err := Parse(token); err == nil {
			t.Errorf("%s: %+v", name, claims)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(issue(f, agents(time.Unix(1_800_000_000, 0))))
	f.Add(sign(`{"iat":10,"exp":20}`))
	f.Fuzz(func(t *testing.T, token string) {
		claims, err := Parse(token)
		switch {
		case err != nil:
			if len(token) > 20 && strings.Contains(err.Error(), token) {
				t.Errorf("the error quotes the token: %v", err)
			}
		case len(token) > maxToken, strings.ContainsAny(token, " \r\n\x00"):
			t.Errorf("taken: %q", token)
		case !claims.Expires.IsZero() && (claims.lifetime() <= 0 || claims.Namespace == "" || claims.Account == ""):
			t.Errorf("%+v", claims)
		}
	})
}

func TestDue(t *testing.T) {
	issued := time.Unix(1_800_000_000, 0)
	claims := agents(issued)
	for after, want := range map[time.Duration]bool{
		-time.Hour: false, 0: false, 10*24*time.Hour - time.Second: false, 10 * 24 * time.Hour: true, 31 * 24 * time.Hour: true,
	} {
		if got := claims.due(issued.Add(after)); got != want {
			t.Errorf("%s after: %t", after, got)
		}
	}
}
