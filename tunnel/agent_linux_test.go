package tunnel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// A request is a call for an agent.
type request struct {
	Call      string
	Config    Config                 // open
	Peers     []Peer                 // configure
	Published map[Key]netip.AddrPort // restore
	Nudges    map[Key]Nudge          // nudge
}

// A response is the result of a call.
type response struct {
	Error   string
	Changed bool
	Changes Changes
	Done    Nudges
	Key     Key
	Status  Status
}

// runAgent runs a process with one device and an engine, which executes requests from its
// standard input until that ends. It returns the exit code.
func runAgent() int {
	if err := isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare namespaces:", err)
		return 1
	}
	// It ends with this process.
	if _, err := enginetest.Start(slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "start engine:", err)
		return 1
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var d *Device
	for {
		var req request
		if err := in.Decode(&req); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "read request:", err)
			return 1
		}
		res, err := serveRequest(&d, req)
		if err != nil {
			res.Error = err.Error()
		}
		if err := out.Encode(res); err != nil {
			fmt.Fprintln(os.Stderr, "write response:", err)
			return 1
		}
	}
}

func serveRequest(d **Device, req request) (res response, err error) {
	ctx, cancel := contextWithTimeout()
	defer cancel()
	switch req.Call {
	case "open":
		req.Config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		*d = Open(req.Config)
		res.Key = (*d).PublicKey()
	case "ensure":
		res.Changed, err = (*d).Ensure(ctx)
	case "configure":
		res.Changes, err = (*d).Configure(ctx, req.Peers)
	case "nudge":
		res.Done, err = (*d).Nudge(ctx, func(p PeerStatus) Nudge { return req.Nudges[p.PublicKey] })
	case "restore":
		(*d).RestoreEndpoints(req.Published)
	case "status":
		res.Status, err = (*d).Status(ctx)
	case "park":
		err = (*d).cfg.Ports.park((*d).control, (*d).Name())
	case "later":
		later := time.Now().Add(recheck)
		(*d).now = func() time.Time { return later }
	default:
		err = fmt.Errorf("no call %q", req.Call)
	}
	return res, err
}

// agent is a process that serves a device in a namespace.
type agent struct {
	cfg  Config
	pid  int
	key  Key
	kill func()
	in   *json.Encoder
	out  *json.Decoder
}

// startAgent starts an agent and creates its device. The process ends with the
// test.
func startAgent(t *testing.T, n *nstest.Namespace, cfg Config) *agent {
	t.Helper()
	cmd := command(roleAgent)
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	// Without Pdeathsig: the starting thread ends at once, and the agent ends with its input.
	cmd.SysProcAttr.Pdeathsig = 0
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	killed := false
	a := &agent{cfg: cfg, in: json.NewEncoder(stdin), out: json.NewDecoder(stdout)}
	a.kill = func() {
		if killed {
			return
		}
		killed = true
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // "signal: killed"
	}
	t.Cleanup(a.kill)
	a.pid = cmd.Process.Pid
	a.key = a.call(t, request{Call: "open", Config: cfg}).Key
	a.call(t, request{Call: "ensure"})
	return a
}

func (a *agent) call(t *testing.T, req request) response {
	t.Helper()
	if err := a.in.Encode(req); err != nil {
		t.Fatalf("agent: %v", err)
	}
	var res response
	if err := a.out.Decode(&res); err != nil {
		t.Fatalf("agent: %v", err)
	}
	if res.Error != "" {
		t.Fatalf("agent: %s: %s", req.Call, res.Error)
	}
	return res
}

func (a *agent) configure(t *testing.T, peers ...Peer) Changes {
	t.Helper()
	return a.call(t, request{Call: "configure", Peers: peers}).Changes
}

// nudge makes the agent nudge a peer, and returns the counts.
func (a *agent) nudge(t *testing.T, key Key, what Nudge) Nudges {
	t.Helper()
	return a.call(t, request{Call: "nudge", Nudges: map[Key]Nudge{key: what}}).Done
}

// peer returns the status of the peer with that key.
func (a *agent) peer(t *testing.T, key Key) PeerStatus {
	t.Helper()
	for _, p := range a.call(t, request{Call: "status"}).Status.Peers {
		if p.PublicKey == key {
			return p
		}
	}
	t.Fatalf("no peer %s", key)
	return PeerStatus{}
}
