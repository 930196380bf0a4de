// Package remote_test runs hand-over with API servers that give any answer. The
// real ones are in e2e/scenarios: TestExample.
package remote_test

import (
	"encoding/json"
	"encoding/pem"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// static is the answer of an API server about the Secret with an account's token.
func (n *neighbours) static(t *testing.T, tool, answer string) {
	t.Helper()
	n.write(t, "gcp.get.secret.semaphore-"+tool+"-remote-aws", "kubernetes.io/service-account-token "+answer)
}

// bound are the answers of an API server that issues bound tokens for a tool.
func (n *neighbours) bound(t *testing.T, tool, token, ca string) {
	t.Helper()
	account := "semaphore-" + tool + "-remote-aws"
	n.write(t, "gcp.get.secret."+account, "Opaque  ")
	n.write(t, "gcp.create.token."+account, token)
	n.write(t, "gcp.get.configmap.kube-root-ca.crt", ca)
}

// patches are the patches of Secrets among what was written.
func patches(t *testing.T, written string) map[string]map[string][]byte {
	t.Helper()
	found := map[string]map[string][]byte{}
	name := ""
	for line := range strings.Lines(written) {
		if _, rest, ok := strings.Cut(line, "aws: patch secret "); ok {
			name, _, _ = strings.Cut(rest, " ")
			continue
		}
		if name == "" {
			continue
		}
		var patch struct{ Data map[string][]byte }
		if err := json.Unmarshal([]byte(line), &patch); err != nil {
			t.Fatalf("patch of %s: %v", name, err)
		}
		found[name], name = patch.Data, ""
	}
	return found
}

// TestHandOver is what a neighbour means well with.
func TestHandOver(t *testing.T) {
	n := newNeighbours(t)
	ca := authority(t)
	n.static(t, "wireguard", encode(token(`{"sub":"w"}`)+"\n")+" "+encode("# a comment\r\n"+ca+ca))
	n.static(t, "policy", encode(token(`{"sub":"p"}`))+" "+encode(ca))
	n.write(t, "aws.get.secret.semaphore-policy-remotes", "secret/semaphore-policy-remotes\n")
	printed, written, err := n.handOver(t, "gcp", "aws")
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	want := map[string]map[string][]byte{
		"semaphore-wireguard-remotes": {"gcp.token": []byte(token(`{"sub":"w"}`)), "gcp.ca.crt": []byte(ca + ca)},
		"semaphore-policy-remotes":    {"gcp.token": []byte(token(`{"sub":"p"}`)), "gcp.ca.crt": []byte(ca)},
	}
	if diff := cmp.Diff(want, patches(t, written)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	if got := strings.Count(written, "create secret generic"); got != 1 || !strings.Contains(written, "aws: create secret generic semaphore-wireguard-remotes\n") {
		t.Errorf("expected the missing Secret to be created, and nothing else:\n%s", written)
	}
	for _, secret := range []string{encode(ca)[:40], token(`{"sub":"w"}`), encode(token(`{"sub":"p"}`))} {
		if strings.Contains(printed, secret) {
			t.Error("a value is printed")
		}
	}
}

// TestHandOverOfBoundTokens asks for tokens, and revokes those before.
func TestHandOverOfBoundTokens(t *testing.T) {
	ca := authority(t)
	want := map[string]map[string][]byte{
		"semaphore-wireguard-remotes": {"gcp.token": []byte(token(`{"sub":"w"}`)), "gcp.ca.crt": []byte(ca)},
		"semaphore-policy-remotes":    {"gcp.token": []byte(token(`{"sub":"p"}`)), "gcp.ca.crt": []byte(ca)},
	}
	for _, args := range [][]string{{"gcp", "aws"}, {"--revoke", "gcp", "aws"}} {
		n := newNeighbours(t)
		n.bound(t, "wireguard", token(`{"sub":"w"}`)+"\n", ca)
		n.bound(t, "policy", token(`{"sub":"p"}`)+"\n", ca)
		printed, written, err := n.handOver(t, args...)
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		if diff := cmp.Diff(want, patches(t, written)); diff != "" {
			t.Errorf("%q: patches (-want +got):\n%s", args, diff)
		}
		anchor := "gcp: delete secret semaphore-wireguard-remote-aws\ngcp: create secret generic semaphore-wireguard-remote-aws --save-config\n"
		if got, want := strings.Contains(written, anchor), args[0] == "--revoke"; got != want || (!want && strings.Contains(written, "gcp: ")) {
			t.Errorf("%q wrote:\n%s", args, written)
		}
	}
}

// TestHandOverRefusesBoundTokens has a neighbour issue something else.
func TestHandOverRefusesBoundTokens(t *testing.T) {
	ca, good := authority(t), token(`{"sub":"w"}`)
	const role = "\n---\nkind: ClusterRoleBinding\n"
	for name, answer := range map[string]struct{ token, ca string }{
		"a manifest behind the token": {good + role, ca},
		"two tokens":                  {good + "\n" + good, ca},
		"words":                       {"no token", ca},
		"nothing":                     {"", ca},
		"a control sequence":          {"\x1b[2J" + good, ca},
		"binary":                      {good + "\x00", ca},
		"a huge token":                {strings.Repeat("QUJD", 1<<20), ca},
		"JSON":                        {good + `","x":"y`, ca},
		"no CA":                       {good, ""},
		"words as CA":                 {good, "no certificate"},
		"a manifest in the CA":        {good, ca + "-----BEGIN X-----" + role},
		"a huge CA":                   {good, strings.Repeat(ca, 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNeighbours(t)
			n.bound(t, "service-mirror", good, ca)
			n.bound(t, "policy", answer.token, answer.ca)
			printed, written, err := n.handOver(t, "gcp", "aws")
			if err == nil || written != "" || !strings.HasPrefix(printed, "gcp: ") {
				t.Errorf("error %v, printed %q, wrote:\n%s", err, printed, written)
			}
			fit(t, printed)
		})
	}
	t.Run("another kind of Secret", func(t *testing.T) {
		n := newNeighbours(t)
		n.bound(t, "wireguard", good, ca)
		n.write(t, "gcp.get.secret.semaphore-policy-remote-aws", "Opaque QUJD ")
		if printed, written, err := n.handOver(t, "--revoke", "gcp", "aws"); err == nil || written != "" {
			t.Errorf("error %v, printed %q, wrote:\n%s", err, printed, written)
		}
	})
	t.Run("one that never expires can't be revoked so", func(t *testing.T) {
		n := newNeighbours(t)
		n.bound(t, "wireguard", good, ca)
		n.static(t, "policy", encode(good)+" "+encode(ca))
		if printed, written, err := n.handOver(t, "--revoke", "gcp", "aws"); err == nil || written != "" || !strings.Contains(printed, "delete the Secret") {
			t.Errorf("error %v, printed %q, wrote:\n%s", err, printed, written)
		}
	})
}

// TestHandOverRefuses has a neighbour answer what could become something else than
// a token and a CA on its way into a Secret here. The good answer for the tool
// before it isn't written, either.
func TestHandOverRefuses(t *testing.T) {
	ca, good := authority(t), token(`{"sub":"w"}`)
	block, _ := pem.Decode([]byte(ca))
	cut := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes[:len(block.Bytes)-1]}))
	long := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: append(block.Bytes[:len(block.Bytes):len(block.Bytes)], 0)}))
	const role = "\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: evil\n"
	cases := map[string]string{
		"a manifest behind the values":   encode(good) + " " + encode(ca) + role,
		"a manifest between the values":  encode(good) + role + " " + encode(ca),
		"a manifest behind short values": "QUJD QUJD" + role,
		"a manifest in the token":        encode(good+role) + " " + encode(ca),
		"a manifest in the CA":           encode(good) + " " + encode(ca+"-----BEGIN X-----"+role),
		"a manifest inside of the CA":    encode(good) + " " + encode(strings.Replace(ca, "\n", role, 1)),
		"JSON":                           encode(good) + `","x":"y ` + encode(ca),
		"an object":                      `{"a":"b"} {"a":"b"}`,
		"three values":                   encode(good) + " " + encode(ca) + " " + encode(ca),
		"two lines":                      encode(good) + " " + encode(ca) + "\n" + encode(good),
		"lines inside of a value":        encode(good)[:10] + "\n" + encode(good)[10:] + " " + encode(ca),
		"tabs":                           encode(good) + "\t" + encode(ca),
		"no CA":                          encode(good) + " ",
		"no token":                       " " + encode(ca),
		"nothing in either":              " ",
		"only line breaks":               "\n\n \n",
		"padding inside":                 "QU=JD " + encode(ca),
		"padding only":                   "== ==",
		"base64 cut off":                 encode(good) + "A " + encode(ca),
		"not base64":                     good + " " + ca,
		"an expansion":                   "$(touch${IFS}/tmp/x) `id`",
		"a control sequence":             "\x1b[2J\x1b]0;x\a " + encode(ca),
		"binary":                         "\x00\x01\xff\xfe\x00 \x00" + encode(ca),
		"bytes of zero in the values":    encode(good)[:8] + "\x00" + encode(good)[8:] + " " + encode(ca),
		"binary in the values":           encode(good+"\x00\xff") + " " + encode(ca),
		"words as a token":               encode("not a token") + " " + encode(ca),
		"two parts of a token":           encode("eyJh.eyJh") + " " + encode(ca),
		"four parts of a token":          encode(good+".eyJh") + " " + encode(ca),
		"an empty part of a token":       encode("eyJh..eyJh") + " " + encode(ca),
		"a token that is no JSON":        encode("YWJj.YWJj.YWJj") + " " + encode(ca),
		"two tokens":                     encode(good+"\n"+good) + " " + encode(ca),
		"a header in the token":          encode(good+"\r\nX-Other: y") + " " + encode(ca),
		"a huge token":                   encode(token(strings.Repeat("x", 9000))) + " " + encode(ca),
		"a huge answer":                  strings.Repeat("QUJD", 1<<20) + " " + encode(ca),
		"many authorities":               encode(good) + " " + encode(strings.Repeat(ca, 200)),
		"words as CA":                    encode(good) + " " + encode("not a certificate"),
		"no block in the CA":             encode(good) + " " + encode("\n\n"),
		"an empty block":                 encode(good) + " " + encode("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
		"a block without an end":         encode(good) + " " + encode(strings.TrimSuffix(ca, "-----END CERTIFICATE-----\n")),
		"a block in a block":             encode(good) + " " + encode("-----BEGIN CERTIFICATE-----\n"+ca),
		"a block of something else":      encode(good) + " " + encode("-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"),
		"a key":                          encode(good) + " " + encode(ca+"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"),
		"a certificate that is cut off":  encode(good) + " " + encode(cut),
		"a certificate with more behind": encode(good) + " " + encode(long),
	}
	for name, answer := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNeighbours(t)
			n.static(t, "wireguard", encode(good)+" "+encode(ca))
			n.static(t, "service-mirror", answer)
			printed, written, err := n.handOver(t, "gcp", "aws")
			if err == nil || written != "" {
				t.Errorf("error %v, wrote:\n%s", err, written)
			}
			if !strings.HasPrefix(printed, "gcp: ") || strings.Count(printed, "\n") != 1 || strings.Contains(printed, "QUJD") {
				t.Errorf("printed %q", printed)
			}
			fit(t, printed)
		})
	}
}

// fit checks that a text does no harm to a terminal.
func fit(t *testing.T, printed string) {
	t.Helper()
	for _, c := range []byte(printed) {
		if c != '\n' && (c < ' ' || c > '~') {
			t.Fatalf("printed %q", printed)
		}
	}
}

// TestHandOverWithoutOpenSSL has a machine with no more than the script needs.
func TestHandOverWithoutOpenSSL(t *testing.T) {
	n := newNeighbours(t)
	bin, _, _ := strings.Cut(n.path, ":")
	for _, tool := range []string{"bash", "head", "cat", "tr", "od", "fold", "base64", "ls", "env"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := exec.CommandContext(t.Context(), "ln", "-s", path, bin).Run(); err != nil {
			t.Fatal(err)
		}
	}
	n.path = bin
	ca := authority(t)
	n.static(t, "policy", encode(token(`{"sub":"p"}`))+" "+encode(ca))
	if printed, written, err := n.handOver(t, "gcp", "aws"); err != nil || len(patches(t, written)) != 1 {
		t.Errorf("%v\n%s\n%s", err, printed, written)
	}
	n.static(t, "policy", encode(token(`{"sub":"p"}`))+" "+encode("-----BEGIN CERTIFICATE-----\nMIIAAAAA\n-----END CERTIFICATE-----\n"))
	if printed, _, err := n.handOver(t, "gcp", "aws"); err == nil {
		t.Errorf("took what is no certificate: %s", printed)
	}
}

// TestHandOverKeepsTheTerminal has API servers put control sequences into their
// complaints and answers.
func TestHandOverKeepsTheTerminal(t *testing.T) {
	n := newNeighbours(t)
	n.write(t, "stderr", "Warning: \x1b[2J\x1b]0;title\a\u009b31m\r"+strings.Repeat("x", 1<<20)+"\n")
	n.static(t, "policy", encode(token(`{"sub":"p"}`))+" "+encode(authority(t)))
	printed, written, err := n.handOver(t, "gcp", "aws")
	if err != nil || len(patches(t, written)) != 1 {
		t.Errorf("%v, wrote:\n%s", err, written)
	}
	fit(t, printed)
	if len(printed) > 100_000 {
		t.Errorf("printed %d bytes", len(printed))
	}
}

func TestHandOverTakesNamesOnly(t *testing.T) {
	for _, name := range []string{"", "-gcp", "gcp-", "GCP", "gcp.aws", "a b", "a\nb", `a"b`, "../gcp", "$(id)", "ä", "--all", "--revoke", strings.Repeat("a", 64)} {
		for _, args := range [][]string{{name, "aws"}, {"gcp", name}} {
			n := newNeighbours(t)
			if printed, written, err := n.handOver(t, args...); err == nil || written != "" || !strings.HasPrefix(printed, "usage: ") {
				t.Errorf("%q: %v, printed %q, wrote %q", args, err, printed, written)
			}
		}
	}
}
