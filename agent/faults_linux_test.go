package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// TestOneUnusableKeyFile runs an agent that can't read the key of one remote: the other
// one works, the status shows the error, and the key is used as soon as it can be read.
func TestOneUnusableKeyFile(t *testing.T) {
	nstest.Root(t)
	cfg := testConfig(t)
	file := filepath.Join(cfg.KeyPath, "wireguard.gcp.key")
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	var logs logtest.Buffer
	a := startAgent(t, cfg, &logs)
	polltest.Until(t, time.Minute, "the other remote's device", func() bool { return a.remotes[1].present() })
	polltest.Until(t, time.Minute, "the failure in the status", func() bool {
		return strings.Contains(statusOf(a).Failure("device gcp"), file)
	})
	if a.remotes[0].present() || statusOf(a).Remotes[0].Device.PublicKey != "" {
		t.Error("a device without a key")
	}
	if text := logs.String(); !strings.Contains(text, file) {
		t.Errorf("the log says nothing about %s:\n%s", file, text)
	}
	if err := a.health(); err != nil {
		t.Errorf("health: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, 2*time.Minute, "the remote's device", func() bool {
		rep := statusOf(a)
		return a.remotes[0].present() && rep.Failure("device gcp") == "" && rep.Remotes[0].Device.PublicKey != ""
	})
}

// TestATakenListenPort runs an agent whose first port is taken by another process: the
// device listens on another port, which is published, until its own is free.
func TestATakenListenPort(t *testing.T) {
	nstest.QuickRoot(t)
	socket, err := net.ListenPacket("udp", ":51820")
	if err != nil {
		t.Fatal(err)
	}
	free := sync.OnceFunc(func() { _ = socket.Close() })
	t.Cleanup(free)
	var logs logtest.Buffer
	a := startAgent(t, testConfig(t), &logs)
	var rep *statuspage.Agent
	polltest.Until(t, time.Minute, "both devices, and the failure in the status", func() bool {
		rep = statusOf(a)
		return a.remotes[0].present() && a.remotes[1].present() && strings.Contains(rep.Failure("device gcp"), "51820")
	})
	published := a.publications()
	if port := published[0].ListenPort; port == 0 || port == 51820 || port != rep.Remotes[0].Device.ListenPort {
		t.Errorf("published port %d, status %+v", port, rep.Remotes[0].Device)
	}
	if port := published[1].ListenPort; port != 51821 || rep.Failure("device merit") != "" {
		t.Errorf("the other remote: port %d, %s", port, rep.Failure("device merit"))
	}
	if i := slices.IndexFunc(rep.Conditions, func(c statuspage.Condition) bool { return c.Reason == statuspage.ReasonPortTaken }); i < 0 || rep.Conditions[i].Object != "device gcp" || rep.Conditions[i].Since == nil {
		t.Errorf("conditions: %+v", rep.Conditions)
	}
	if where := "ss -ulnp sport = :51820"; !strings.Contains(rep.Failure("device gcp"), where) || !strings.Contains(logs.String(), where) {
		t.Errorf("the status doesn't say %q: %s\n%s", where, rep.Failure("device gcp"), logs.String())
	}
	free()
	polltest.Until(t, 2*time.Minute, "the device to take its port", func() bool {
		rep := statusOf(a)
		return rep.Remotes[0].Device.ListenPort == 51820 && a.publications()[0].ListenPort == 51820 && rep.Failure("device gcp") == ""
	})
}

// statusOf returns the report of an agent.
func statusOf(a *agent) *statuspage.Agent {
	rep := a.status().(statuspage.Agent)
	return &rep
}

// startAgent runs an agent until the test ends, and checks that it leaves nothing running.
func startAgent(t *testing.T, cfg config.Wireguard, logs io.Writer) *agent {
	t.Helper()
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, running) })
	a, err := newAgent(cfg, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tasks := a.tasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { done <- task.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range tasks {
			if err := <-done; err != nil {
				t.Errorf("a task ended with %v", err)
			}
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	return a
}
