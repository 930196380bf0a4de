package engine

import (
	"bytes"
	"crypto/ecdh"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/resume"
)

// newDevice returns a device of wireguard-go that is down, with a link and sockets in
// memory. Its buffers are 8 MB, and more with the race detector: the caller closes it early.
func newDevice() *device.Device {
	silent := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
	return device.NewDevice(resume.NewTun(tuntest.NewChannelTUN().TUN()), conn.NewDefaultBind(), silent)
}

// copied describes a new device with the configuration of a model.
func copied(t testing.TB, m *model) string {
	t.Helper()
	dev := newDevice()
	defer dev.Close()
	if err := dev.IpcSet(whole(m) + "\n"); err != nil {
		t.Fatalf("%v of\n%s", err, whole(m))
	}
	return described(t, dev)
}

// described returns the answer to "get" for comparison: with sorted sections and lines, and
// without the lines that no configuration sets.
func described(t testing.TB, dev *device.Device) string {
	t.Helper()
	text, err := dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for i, section := range strings.Split("\n"+text, "\npublic_key=") {
		lines := slices.DeleteFunc(strings.Split(section, "\n"), func(line string) bool {
			name, _, _ := strings.Cut(line, "=")
			return slices.Contains([]string{"", "protocol_version", "last_handshake_time_sec", "last_handshake_time_nsec", "tx_bytes", "rx_bytes"}, name)
		})
		slices.Sort(lines)
		if i > 0 {
			lines = append([]string{"public_key"}, lines...)
		}
		sections = append(sections, strings.Join(lines, "\n"))
	}
	slices.Sort(sections[1:])
	return strings.Join(sections, "\n")
}

// whole returns the request that configures a new device like the model.
func whole(m *model) string {
	keys, _ := m.recent(time.Time{})
	return body(m.request(m.port)) + body(m.keepalives(keys))
}

// body returns a request without its first and its last line.
func body(request []byte) string {
	return strings.TrimSuffix(strings.TrimPrefix(string(request), "set=1\n"), "\n")
}

// someKeys returns private keys and their public keys.
func someKeys(t testing.TB, n int) (private, public []string) {
	t.Helper()
	for i := range n {
		k, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{byte(i + 1)}, 32))
		if err != nil {
			t.Fatal(err)
		}
		private = append(private, fmt.Sprintf("%x", k.Bytes()))
		public = append(public, fmt.Sprintf("%x", k.PublicKey().Bytes()))
	}
	return private, public
}

// randomRequest returns a valid "set" request without its first and last line.
func randomRequest(r *rand.Rand, private, public []string) string {
	var b strings.Builder
	one := func(options ...string) string { return options[r.IntN(len(options))] }
	maybe := func(format string, a ...any) {
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, format+"\n", a...)
		}
	}
	maybe("private_key=%s", one(append(private, strings.Repeat("0", 64))...))
	maybe("listen_port=%d", r.IntN(2)*51820)
	maybe("fwmark=%d", r.IntN(3))
	if r.IntN(10) == 0 {
		b.WriteString("replace_peers=true\n")
	}
	for range r.IntN(4) {
		fmt.Fprintf(&b, "public_key=%s\n", one(public...))
		maybe("update_only=true")
		if r.IntN(8) == 0 {
			b.WriteString("remove=true\n")
		}
		maybe("preshared_key=%s", one(private...))
		maybe("endpoint=%s", one("192.0.2.1:51820", "[fd00::1]:7", "192.0.2.2:1"))
		maybe("persistent_keepalive_interval=%d", r.IntN(3)*25)
		maybe("replace_allowed_ips=true")
		for range r.IntN(4) {
			fmt.Fprintf(&b, "allowed_ip=%s%s\n", one("", "", "", "-"),
				one("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/16", "10.1.2.3/32", "fd00::/48", "fd00::1/128", "0.0.0.0/0", "::/0"))
		}
		maybe("protocol_version=1")
	}
	return b.String()
}

// TestAModelIsWhatTheDeviceIs sends the same requests to wireguard-go and a model. After
// each of them a new device with the model's configuration must equal the first device.
func TestAModelIsWhatTheDeviceIs(t *testing.T) {
	private, public := someKeys(t, 5)
	history := func(seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		dev, m := newDevice(), newModel()
		defer dev.Close()
		var past strings.Builder
		for range 12 {
			request := randomRequest(r, private, public)
			fmt.Fprintf(&past, "%s\n", request)
			if err := dev.IpcSet(request + "\n"); err != nil {
				t.Fatalf("seed %d: %v after\n%s", seed, err, &past)
			}
			if err := m.set(strings.NewReader(request + "\n")); err != nil {
				t.Fatalf("seed %d: %v after\n%s", seed, err, &past)
			}
			if diff := cmp.Diff(described(t, dev), copied(t, m)); diff != "" {
				t.Fatalf("seed %d: device, and one made of the model (-want +got):\n%safter\n%s", seed, diff, &past)
			}
			text, err := dev.IpcGet()
			if err != nil {
				t.Fatal(err)
			}
			read := newModel()
			for from, text := range map[string]string{"the device": text + "errno=0\n\n", "the model's text": string(m.text())} {
				if err := read.read(strings.NewReader(text)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(sorted(whole(m)), sorted(whole(read))); diff != "" {
					t.Fatalf("seed %d: model, and one read from %s (-want +got):\n%s", seed, from, diff)
				}
			}
			if r.IntN(2) == 0 {
				m = read // equal, so that the test continues with it
			}
		}
	}
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		history(seed)
	}
}

func sorted(request string) []string {
	lines := strings.Split(request, "\n")
	slices.Sort(lines)
	return lines
}

func TestAModelTakesWherePeersAreNow(t *testing.T) {
	_, public := someKeys(t, 3)
	m := newModel()
	set := "public_key=" + public[0] + "\nendpoint=192.0.2.1:1\nallowed_ip=10.0.0.0/8\npublic_key=" + public[1] + "\n\n"
	if err := m.set(strings.NewReader(set)); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(2_000_000_000, 0)
	answer := fmt.Sprintf("public_key=%s\nendpoint=192.0.2.9:9\nlast_handshake_time_sec=%d\nallowed_ip=10.0.0.0/9\n"+
		"public_key=%s\nlast_handshake_time_sec=%d\npublic_key=%s\nendpoint=192.0.2.3:3\nerrno=0\n\n",
		public[0], now.Add(-time.Minute).Unix(), public[1], now.Add(-time.Hour).Unix(), public[2])
	if err := m.observe(strings.NewReader(answer)); err != nil {
		t.Fatal(err)
	}
	if got := string(m.request(0)); !strings.Contains(got, "endpoint=192.0.2.9:9\nallowed_ip=10.0.0.0/8\n") || strings.Contains(got, public[2]) {
		t.Errorf("configuration:\n%s", got)
	}
	keys, live := m.recent(now)
	if len(keys) != 2 || live != 1 || fmt.Sprintf("%x", keys[0]) != public[0] {
		t.Errorf("peers %x, %d of them with a session, want %s and one without", keys, live, public[0])
	}
}

// FuzzModel reads requests that wireguard-go accepts, and answers of any form.
func FuzzModel(f *testing.F) {
	private, public := someKeys(f, 3)
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		f.Add(randomRequest(r, private, public))
	}
	f.Add("public_key=" + public[0] + "\nallowed_ip=::ffff:10.0.0.0/104\nendpoint=[fe80::1%lo]:1\n")
	f.Fuzz(func(t *testing.T, request string) {
		if strings.Contains(request, "\n\n") {
			return // Two requests.
		}
		dev, m := newDevice(), newModel()
		defer dev.Close()
		if dev.IpcSet(request+"\n") != nil {
			_ = m.set(strings.NewReader(request)) // It must not panic.
			return
		}
		if err := m.set(strings.NewReader(request)); err != nil {
			t.Fatalf("%v: wireguard-go accepts %q", err, request)
		}
		if diff := cmp.Diff(described(t, dev), copied(t, m)); diff != "" {
			t.Errorf("device, and one made of the model (-want +got):\n%safter %q", diff, request)
		}
	})
}

// TestAnAnswerThatIsCutOffChangesNothing: a process may end while it answers.
func TestAnAnswerThatIsCutOffChangesNothing(t *testing.T) {
	_, public := someKeys(t, 2)
	m := newModel()
	if err := m.set(strings.NewReader("public_key=" + public[0] + "\npublic_key=" + public[1] + "\n\n")); err != nil {
		t.Fatal(err)
	}
	before := sorted(whole(m))
	answer := "public_key=" + public[0] + "\nerrno=0\n\n"
	for _, text := range []string{"", answer[:70], answer[:75], strings.Replace(answer, "=0\n", "=5\n", 1)} {
		if err := m.read(strings.NewReader(text)); err == nil {
			t.Errorf("no error from %q", text)
		}
	}
	if diff := cmp.Diff(before, sorted(whole(m))); diff != "" {
		t.Errorf("model (-before +after):\n%s", diff)
	}
	if err := m.read(strings.NewReader(answer)); err != nil || len(m.peers) != 1 {
		t.Errorf("%d peers of a whole answer, err %v", len(m.peers), err)
	}
}

// The keepalives of peers with a handshake are set without an endpoint: a request with an
// endpoint discards the packets that wait for the peer.
func TestKeepalivesOfStrangersComeWithTheirEndpoints(t *testing.T) {
	_, public := someKeys(t, 3)
	m := newModel()
	var keys []key
	for _, text := range public {
		k, err := parseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
		m.peers[k] = &peer{endpoint: "192.0.2.1:51820", keepalive: 25}
	}
	m.peers[keys[1]].handshake = time.Unix(1, 0)
	m.peers[keys[2]].endpoint = "" // The peer connects first.
	want := fmt.Sprintf("set=1\npublic_key=%s\nupdate_only=true\nendpoint=192.0.2.1:51820\npersistent_keepalive_interval=25\n"+
		"public_key=%s\nupdate_only=true\npersistent_keepalive_interval=25\npublic_key=%s\nupdate_only=true\npersistent_keepalive_interval=25\n\n",
		public[0], public[1], public[2])
	if got := string(m.keepalives(keys)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
