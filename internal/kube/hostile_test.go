package kube

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// hostileBounds are small, so that most of them are reached in seconds.
var hostileBounds = Bounds{Answer: 16 << 20, Objects: 2000}

// memoryLimit is the limit of the process that watches hostile remotes: half of the agent's
// limit in the manifests. Its heap has the share of it that internal/process gives the programs.
const memoryLimit = 256 << 20

// hostilePatience is for a busy machine.
const hostilePatience = 10 * time.Minute

// hostileEnv makes this test binary the process that is measured.
const hostileEnv = "SEMAPHORE_TEST_HOSTILE"

// endless writes a beginning, and a part for ever.
func endless(begin, part string) func(io.Writer) {
	return func(w io.Writer) {
		_, err := io.WriteString(w, begin)
		whole := []byte(strings.Repeat(part, 1+(64<<10)/len(part)))
		for err == nil {
			_, err = w.Write(whole)
		}
	}
}

// hostileNode is an ADDED event or an item of a list in JSON.
func hostileNode(i int, fields string) string {
	return `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n` + strconv.Itoa(i) + `","resourceVersion":"5"},` + fields + `}`
}

// numbered writes a beginning, and parts that differ for ever.
func numbered(begin string, part func(i int) string) func(io.Writer) {
	return func(w io.Writer) {
		buffered := bufio.NewWriterSize(w, 64<<10)
		_, err := buffered.WriteString(begin)
		for i := 0; err == nil; i++ {
			_, err = buffered.WriteString(part(i))
		}
	}
}

// attack is one way to answer.
type attack struct {
	name string
	// list answers plain lists, watch streamed ones, which nil refuses.
	list, watch func(io.Writer)
	media       string
	header      func(http.Header)
	code        int
	want        string // in the error or the log of the watch
}

func attacks() []attack {
	bomb := func(w io.Writer) {
		z := gzip.NewWriter(w)
		endless(`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`, hostileNode(0, `"spec":{}`)+",")(z)
	}
	gzipped := func(h http.Header) { h.Set("Content-Encoding", "gzip") }
	listJSON := `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`
	empty := bytes.Repeat([]byte{5<<3 | wireBytes, 0}, 1<<20) // conditions of a node's status, or containers of a pod's
	heavy := protobufNode("heavy", appendField(nil, 3, bytes.Repeat([]byte{4<<3 | wireBytes, 0}, 1<<20)))
	long := strings.Repeat("k", 100<<10)
	return []attack{
		{name: "gzip bomb", list: bomb, media: typeJSON, header: gzipped, want: "compressed body"},
		{name: "endless list", list: numbered(listJSON, func(i int) string { return hostileNode(i, `"spec":{}`) + "," }), media: typeJSON, want: "objects, twice the maximum"},
		{name: "endless list of nothing", list: endless(listJSON, "{},"), media: typeJSON, want: "objects, twice the maximum"},
		{name: "list of endless item", list: endless(listJSON+`{"metadata":{"name":"`, "x"), media: typeJSON, want: "object of more than 10485760 bytes"},
		{name: "list of endless metadata", list: endless(`{"kind":"NodeList","metadata":{"resourceVersion":"`, "x"), media: typeJSON, want: "of more than"},
		{name: "endless fields beside the items", list: endless(`{"a":1`, `,"a":"`+strings.Repeat("x", 1000)+`"`), media: typeJSON, want: "response of more than"},
		{name: "large objects to be kept", list: numbered(listJSON, func(i int) string {
			return hostileNode(i, `"status":{"nodeInfo":{"kubeletVersion":"`+long+`"}}`) + ","
		}), media: typeJSON, want: "response of more than"},
		{name: "endless list, protobuf", list: numbered(listStart(), func(i int) string {
			return string(appendField(nil, listItems, protobufNode("n"+strconv.Itoa(i), nil)))
		}), media: typeProtobuf, want: "not JSON"},
		{name: "items that are nothing but heavy, protobuf", list: endless(listStart(), string(appendField(nil, listItems, heavy))), media: typeProtobuf, want: "not JSON"},
		{name: "endless item, protobuf", list: endless(listStart()+string(binary.AppendUvarint([]byte{listItems<<3 | wireBytes}, 1<<30)), "x"), media: typeProtobuf, want: "not JSON"},
		{name: "endless event", watch: endless(`{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"`, "x"), media: typeJSON, want: "object of more than"},
		{name: "endless event, protobuf", watch: endless("\xff\xff\xff\xff", "x"), media: typeProtobuf, want: "not JSON"},
		{name: "heavy events, protobuf", watch: endless(string(protobufEvent("Node", heavy)), string(protobufEvent("Node", heavy))), media: typeProtobuf, want: "not JSON"},
		{name: "heavy events of another kind, protobuf", watch: endless("", string(protobufEvent("Pod", appendField(nil, 2, empty[:1<<20])))), media: typeProtobuf, want: "not JSON"},
		{name: "quantity that takes for ever", watch: endless("", `{"type":"ADDED","object":`+hostileNode(1, `"status":{"capacity":{"cpu":"1e-2147483647"}}`)+"}\n"), media: typeJSON, want: "objects, twice the maximum"},
		{name: "endless streamed list", watch: numbered("", func(i int) string {
			return `{"type":"ADDED","object":` + hostileNode(i, `"status":{"nodeInfo":{"kubeletVersion":"v1"}}`) + "}\n"
		}), media: typeJSON, want: "objects, twice the maximum"},
		{name: "streamed list of endless versions", watch: numbered("", func(i int) string {
			return `{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"n` + strconv.Itoa(i) + `","resourceVersion":"` + strings.Repeat("5", 16<<10) + `"}}}` + "\n"
		}), media: typeJSON, want: "objects, twice the maximum"},
		{name: "bookmark of a long version", watch: func(w io.Writer) {
			_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":"Node","metadata":{"annotations":{%q:"true"},"resourceVersion":"%s"}}}`+"\n",
				metav1.InitialEventsAnnotationKey, strings.Repeat("5", 1<<20))
		}, media: typeJSON, want: "a resource version of 1048576 bytes"},
		{name: "endless error", list: endless(`{"kind":"Status","message":"`, "x"), media: typeJSON, code: http.StatusInternalServerError, want: "an error on the server"},
		{name: "endless error in YAML", list: endless("a: ", "x"), media: "application/yaml", code: http.StatusForbidden, want: "xxx"},
		{name: "endless header", header: func(h http.Header) { h.Set("X", strings.Repeat("x", 12<<20)) }, list: endless("", "x"), media: typeJSON, want: "header"},
	}
}

func (a attack) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := a.list
	if r.URL.Query().Get("watch") == "true" {
		answer = a.watch
	}
	if answer == nil {
		refuse(w, http.StatusUnprocessableEntity, "Invalid")
		return
	}
	w.Header().Set("Content-Type", a.media)
	if a.header != nil {
		a.header(w.Header())
	}
	if a.code != 0 {
		w.WriteHeader(a.code)
	}
	answer(w)
}

// TestHostileRemotes runs a process that watches a good remote and hostile ones at the same
// time, and measures its memory. The good one must be followed throughout.
func TestHostileRemotes(t *testing.T) {
	if os.Getenv(hostileEnv) != "" {
		watchHostileRemotes(t)
		return
	}
	if raceEnabled {
		withoutRace(t)
		return
	}
	ca := newAuthority()
	good := newAPIServer(t, ca)
	good.apply("a", "v0", "")
	all := attacks()
	urls := []string{good.url()}
	for _, a := range all {
		server := newTLSServer(t, ca, a)
		urls = append(urls, server.URL)
	}
	token := writeTemp(t, "token", []byte(secret))
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostileRemotes$", "-test.v", "-test.timeout=9m")
	child.Env = append(os.Environ(), hostileEnv+"="+strings.Join(append([]string{writeTemp(t, "ca", ca.pem), token}, urls...), " "), fmt.Sprint("GOMEMLIMIT=", memoryLimit*9/10), "GOGC=100")
	var errors bytes.Buffer
	child.Stderr = &errors
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var peak atomic.Int64
	lines := make(chan string, 1024)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	heldOff := map[string]bool{}
	version, seen := 0, 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last []string
	for open := true; open; {
		select {
		case line, ok := <-lines:
			open = ok
			last = append(last, line)
			if name, found := strings.CutPrefix(line, "held off: "); found {
				heldOff[name] = true
			}
			if text, found := strings.CutPrefix(line, "good: v"); found {
				if n, err := strconv.Atoi(text); err == nil {
					seen = n
				}
			}
		case <-tick.C:
			if seen == version {
				version++
				good.apply("a", "v"+strconv.Itoa(version), "")
			}
			peak.Store(max(peak.Load(), peakMemory(child.Process.Pid)))
		}
	}
	if err := child.Wait(); err != nil {
		t.Fatalf("the process that watches: %v\n%s\n%s", err, strings.Join(last[max(0, len(last)-60):], "\n"), errors.String())
	}
	for _, a := range all {
		if !heldOff[a.name] {
			t.Errorf("%s: not held off", a.name)
		}
	}
	const changes = 5
	if seen < changes {
		t.Errorf("%d changes of the good remote were seen, want %d", seen, changes)
	}
	t.Logf("%d hostile remotes beside a good one: %d MiB at most, %d changes of the good one seen", len(all), peak.Load()>>20, seen)
	if peak.Load() > memoryLimit {
		t.Errorf("%d MiB, want %d at most", peak.Load()>>20, memoryLimit>>20)
	}
}

// withoutRace runs the test in a binary without the race detector, which takes several times the
// memory, and ten times as long to decode hundreds of megabytes.
func withoutRace(t *testing.T) {
	t.Helper()
	binary, err := plainBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=9m").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", binary, err, out)
	}
	t.Logf("%s", out)
}

// plainBinary builds the tests of this package without the race detector, in the folder that
// runTests removes.
var plainBinary = sync.OnceValues(func() (binary string, err error) {
	binary = filepath.Join(filepath.Dir(os.Getenv("SSL_CERT_FILE")), "plain.test")
	if out, err := exec.Command("go", "test", "-c", "-ldflags=-w", "-o", binary, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tests without the race detector: %w\n%s", err, out)
	}
	return binary, nil
})

// peakMemory returns the peak resident memory of a process; 0 when it has ended.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10
}

// watchHostileRemotes is the process that is measured.
func watchHostileRemotes(t *testing.T) {
	words := strings.Fields(os.Getenv(hostileEnv))
	ca, token, urls := words[0], words[1], words[2:]
	bounds := hostileBounds
	if os.Getenv(hostileEnv+"_UNBOUND") != "" {
		bounds = Bounds{}
	}
	begin := func(name, url string, read func(Client) *Reader) *bench {
		b := &bench{metrics: NewMetrics("test", "test_failures_total")}
		client := clientWith(t, ClientConfig{
			Access: config.Access{APIURL: url, CAFile: ca, TokenFile: token}, UserAgent: "test", Bounds: bounds,
		})
		cfg := b.config(client)
		cfg.Reader = read(client)
		cfg.Cluster, cfg.Bounds = name, bounds
		cfg.Logger = slog.New(slog.NewTextHandler(&b.log, nil))
		b.watch = NewWatch(cfg)
		b.run(t)
		return b
	}
	good := begin("good", urls[0], metadataOfNodes)
	var last string
	report := func() {
		for _, n := range good.nodes() {
			if n.Name == "a" && n.Kubelet != last {
				last = n.Kubelet
				fmt.Println("good: " + last)
			}
		}
	}
	all := attacks()
	// Each attacks a watch of both forms; asked for metadata, all of them send whole nodes.
	benches := make([][2]*bench, len(all))
	for i, a := range all {
		benches[i] = [2]*bench{begin(a.name, urls[1+i], metadataOfNodes), begin(a.name, urls[1+i], wholeNodes)}
	}
	for i, a := range all {
		polltest.Until(t, hostilePatience, a.name, func() bool {
			report()
			return strings.Contains(benches[i][0].log.String(), a.want) && strings.Contains(benches[i][1].log.String(), a.want)
		})
		fmt.Println("held off: " + a.name)
	}
	polltest.Until(t, hostilePatience, "some changes of the good remote", func() bool {
		report()
		n, err := strconv.Atoi(strings.TrimPrefix(last, "v"))
		return err == nil && n >= 10
	})
}
