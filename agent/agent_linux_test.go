package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine"
)

// insideVariable is set for a test process in its own namespaces.
const insideVariable = "SEMAPHORE_TEST_INSIDE"

// TestMain reruns the tests as a process in its own network and mount namespaces: an
// agent's goroutines run on any thread, so the whole process must be in them. Without
// root, tests that need them are skipped.
func TestMain(m *testing.M) {
	enginetest.Main()
	switch os.Getenv(roleVariable) {
	case roleAgent:
		beAgent(runMain)
	case roleEngine:
		beAgent(func() { os.Exit(engine.Main([]string{"semaphore-engine", "-log-format=text"})) })
	case roleMounted:
		beMounted(runMain)
	}
	if os.Geteuid() != 0 || os.Getenv(insideVariable) != "" {
		if os.Geteuid() == 0 {
			if err := furnish(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			// For agents within this process; agents that are processes have their own.
			runtime.LockOSThread()
			cmd := enginetest.Command()
			cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig counts from the end of this thread.
	runtime.LockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runMain() { os.Exit(Main(os.Args[1:])) }

// furnish sets up the process's namespaces.
func furnish() error {
	return errors.Join(
		nstest.Prepare(),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
	)
}

// testConfig returns the configuration of an agent within this process, whose devices are
// removed at the end of the test.
func testConfig(t *testing.T) config.Wireguard {
	t.Helper()
	t.Cleanup(func() {
		links, err := tunnel.List(context.Background())
		check(t, err)
		for _, l := range links {
			check(t, tunnel.Remove(context.Background(), l.Name, l.Alias))
		}
	})
	remote := func(name, subnet string, port int) config.Remote {
		return config.Remote{
			Name: name, Access: kubetest.DeadAccess(t), PodSubnets: []netip.Prefix{netip.MustParsePrefix(subnet)},
			ListenPort: port, MTU: 1420,
		}
	}
	return config.Wireguard{
		Base: config.Base{
			ClusterName: "aws", Local: kubetest.DeadAccess(t), ListenAddress: "127.0.0.1:0", ProbeAddress: "127.0.0.1:0", LogLevel: "info", LogFormat: "text",
			Remotes: []config.Remote{remote("gcp", "10.4.0.0/16", 51820), remote("merit", "fd06::/48", 51821)},
		},
		NodeName: "aws-1", Backend: config.BackendAuto, KeyPath: t.TempDir(), Endpoint: endpoint.InternalIP, RouteSrc: config.RouteSrcAuto, SourceFilter: true,
	}
}

// TestAgentAlone runs an agent whose API servers are all unreachable: it guards the
// remote subnets, has its devices, reports why it isn't ready, and leaves nothing running
// when it ends.
func TestAgentAlone(t *testing.T) {
	nstest.QuickRoot(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var logs logtest.Buffer
	a, err := newAgent(testConfig(t), slog.New(slog.NewTextHandler(&logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tasks := a.tasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { done <- task.Run(ctx) }()
	}
	polltest.Until(t, time.Minute, "devices and routes", func() bool {
		found, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 115, Table: routes.OwnTable}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		return err == nil && len(found) == 4 && a.remotes[0].present() && a.remotes[1].present()
	})
	// Unreachable remotes don't make a node unready.
	polltest.Until(t, time.Minute, "readiness", func() bool { return a.ready() == nil })
	if err := a.health(); err != nil {
		t.Errorf("health: %v", err)
	}
	polltest.Until(t, time.Minute, "the failure in the status", func() bool {
		rep := a.status().(statuspage.Agent)
		return rep.Remotes[0].API.Error != "" && rep.Remotes[1].API.Error != "" && rep.Failure("watch nodes of aws") != ""
	})
	enforced := func() bool {
		rep := a.status().(statuspage.Agent)
		return rep.Filter.State == statuspage.FilterEnforced && rep.Exit.State == statuspage.FilterEnforced
	}
	polltest.Until(t, time.Minute, "the packet filter", enforced)
	if _, err := routes.NewFilter(a.log).Sync(t.Context(), routes.Ruleset{}); err != nil { // as "nft flush ruleset" would
		t.Fatal(err)
	}
	polltest.Until(t, time.Minute, "the packet filter to come back", enforced)
	text, err := json.Marshal(a.status())
	if err != nil {
		t.Fatal(err)
	}
	families, err := a.registry.Gather()
	if err != nil || len(families) == 0 {
		t.Errorf("metrics: %d families, %v", len(families), err)
	}
	cancel()
	for range tasks {
		if err := <-done; err != nil {
			t.Errorf("a task ended with %v", err)
		}
	}
	if !enforced() {
		t.Error("the packet filter has gone with the agent's loops")
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	for _, r := range a.remotes {
		key, err := os.ReadFile(filepath.Join(a.cfg.KeyPath, r.device.Name()+".key"))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{strings.TrimSpace(string(key)), kubetest.Token} {
			if strings.Contains(string(text), secret) || strings.Contains(logs.String(), secret) {
				t.Errorf("a secret is in the status or in the log")
			}
		}
	}
}

func TestStatusOfAnAgentThatHasNotRun(t *testing.T) {
	nstest.QuickRoot(t)
	before, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if _, err := json.Marshal(a.status()); err != nil {
		t.Error(err)
	}
	if err := a.ready(); err == nil {
		t.Error("ready before anything ran")
	}
	if links, err := netlink.LinkList(); err != nil || len(links) != len(before) {
		t.Errorf("making an agent changed the links: %v, %v", links, err)
	}
}

func TestServedStatus(t *testing.T) {
	nstest.QuickRoot(t)
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	a.tasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, server := range []run.Task{a.servers.Probes, a.servers.Status} {
		go func() { done <- server.Run(ctx) }()
	}
	defer func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	}()
	polltest.Until(t, time.Minute, "both servers to listen", func() bool { return len(a.servers.Failing()) == 0 })
	for path, want := range map[string]struct{ probe, status int }{
		"/healthz": {200, 404}, "/readyz": {503, 404}, "/metrics": {200, 200}, "/status": {200, 200},
	} {
		for server, want := range map[*run.Server]int{a.servers.Probes: want.probe, a.servers.Status: want.status} {
			response, err := http.Get("http://" + server.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s%s: %s, want %d", server, path, response.Status, want)
			}
		}
	}
}
