package report

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testReport is the report of a program that keeps sheep.
type testReport struct {
	Farm  string `json:"farm"`
	Sheep []struct{ Name, Health string }
}

func testCommand() Command[testReport] {
	return Command[testReport]{
		Program: "semaphore-sheep", Address: "127.0.0.1:1",
		Show: func(p *Page, report *testReport) {
			p.Line("farm %s", report.Farm)
			table := p.Table("SHEEP", "HEALTH", "AGE")
			for _, s := range report.Sheep {
				table.Row(s.Name, s.Health, p.Age(nil))
				switch s.Health {
				case "ill":
					p.Wrong("%s is ill", s.Name)
				case "away":
					p.Unknown("%s isn't seen", s.Name)
				}
			}
			p.Table("GOATS")
			p.Failing("shears", "")
		},
	}
}

// result is what a run of the command leaves.
type result struct {
	Code           int
	Stdout, Stderr string
}

func run(ctx context.Context, args ...string) result {
	var stdout, stderr strings.Builder
	code := testCommand().Run(ctx, args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// serve answers /status with a code and a body, and returns its address.
func serve(t *testing.T, code int, body string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

const (
	well = `{"farm": "hill", "sheep": [{"name": "dolly", "health": "well"}, {"name": "s", "health": ""}]}` + "\n"
	away = `{"farm": "hill", "sheep": [{"name": "dolly", "health": "away"}]}` + "\n"
	both = `{"farm": "hill", "sheep": [{"name": "dolly", "health": "away"}, {"name": "shaun", "health": "ill"}]}` + "\n"
	ill  = `{"farm": "hill", "sheep": [{"name": "d\u001b[2J` + "\u202e" + `", "health": "ill"}]}` + "\n"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		code int
		body string
		args []string
		want result
	}{
		{"all is well", 200, well, nil, result{0, `farm hill

SHEEP  HEALTH  AGE
dolly  well    never
s      -       never

all is well
`, ""}},
		{"what is wrong comes last, and nothing untrusted reaches the terminal", 200, ill, nil, result{1, `farm hill

SHEEP           HEALTH  AGE
d\x1b[2J\u202e  ill     never

wrong:
  d\x1b[2J\u202e is ill
`, ""}},
		{"what isn't known isn't well", 200, away, nil, result{2, `farm hill

SHEEP  HEALTH  AGE
dolly  away    never

unknown:
  dolly isn't seen
`, ""}},
		{"what isn't known comes after what is wrong", 200, both, []string{"-o", "json"}, result{
			1, both, "wrong:\n  shaun is ill\nunknown:\n  dolly isn't seen\n",
		}},
		{"a report as it is", 200, well, []string{"-o", "json"}, result{0, well, ""}},
		{
			"in a report as it is nothing untrusted reaches the terminal either", 200, ill,
			[]string{"-o", "json"},
			result{1, strings.ReplaceAll(ill, "\u202e", `\u202e`), "wrong:\n  d\\x1b[2J\\u202e is ill\n"},
		},
		{"an error", 500, "encode status: \x1bno", nil, result{
			1, "", "semaphore-sheep status: request the report from ADDRESS: response 500 Internal Server Error: encode status: \\x1bno\n",
		}},
		{"another program", 200, "<html>", nil, result{
			1, "", "semaphore-sheep status: the response of ADDRESS is not a report of semaphore-sheep: invalid character '<' looking for beginning of value\n",
		}},
		{"a redirection is not followed", 302, "", nil, result{1, "", "semaphore-sheep status: request the report from ADDRESS: response 302 Found: \n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := serve(t, c.code, c.body)
			got := run(t.Context(), append([]string{"-address", address}, c.args...)...)
			got.Stderr = strings.ReplaceAll(got.Stderr, address, "ADDRESS")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddressOfTheEnvironment(t *testing.T) {
	_, port, err := net.SplitHostPort(serve(t, http.StatusOK, well))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"", "0.0.0.0", "[::]", "localhost"} {
		t.Setenv("SEMAPHORE_PROBE_ADDRESS", host+":"+port)
		if got := run(t.Context()); got.Code != 0 {
			t.Errorf("listening on %q: %+v", host, got)
		}
	}
}

func TestNoResponse(t *testing.T) {
	t.Setenv("SEMAPHORE_PROBE_ADDRESS", "")
	got := run(t.Context())
	if got.Code != 1 || !strings.HasPrefix(got.Stderr, "semaphore-sheep status: request the report from 127.0.0.1:1: dial tcp 127.0.0.1:1:") {
		t.Errorf("got %+v, want a refusal by the default address", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := run(ctx, "-address", serve(t, http.StatusOK, well)); got.Code != 1 {
		t.Errorf("after the end of its context: %+v", got)
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"-o", "yaml"}, {"-address", "node-1"}, {"gcp"}, {"-unknown"}} {
		got := run(t.Context(), args...)
		if got.Code != 64 || got.Stdout != "" || got.Stderr == "" {
			t.Errorf("%q: %+v, want code 64 and a complaint", args, got)
		}
	}
	if got := run(t.Context(), "-help"); got.Code != 0 || !strings.Contains(got.Stderr, "-address") {
		t.Errorf("-help: %+v", got)
	}
}

// TestProbe asks for probes where the environment says that they are answered: a socket
// comes first.
func TestProbe(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no device\x1b", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, well) })
	socket := filepath.Join(t.TempDir(), "probe.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
	server.Start()
	t.Cleanup(server.Close)
	t.Setenv("SEMAPHORE_PROBE_ADDRESS", "127.0.0.1:1")
	t.Setenv("SEMAPHORE_PROBE_SOCKET", socket)
	ask := func(args ...string) result {
		var stdout, stderr strings.Builder
		code := testCommand().probe(t.Context(), args, &stdout, &stderr)
		return result{code, stdout.String(), stderr.String()}
	}
	usage := result{64, "", "semaphore-sheep probe: expected one path: /readyz or /healthz\n"}
	for _, c := range []struct {
		args []string
		want result
	}{
		{[]string{"/healthz"}, result{0, "ok\n", ""}},
		{[]string{"/readyz"}, result{1, "response 503 Service Unavailable: no device\\x1b\n", ""}},
		{nil, usage}, {[]string{"readyz"}, usage}, {[]string{"/healthz", "/readyz"}, usage},
	} {
		if diff := cmp.Diff(c.want, ask(c.args...)); diff != "" {
			t.Errorf("probe %q (-want +got):\n%s", c.args, diff)
		}
	}
	if got := run(t.Context()); got.Code != 0 {
		t.Errorf("status: %+v", got)
	}
	t.Setenv("SEMAPHORE_PROBE_SOCKET", "")
	if got := ask("/healthz"); got.Code != 1 || !strings.Contains(got.Stdout, "127.0.0.1:1") {
		t.Errorf("without a socket: %+v", got)
	}
}
