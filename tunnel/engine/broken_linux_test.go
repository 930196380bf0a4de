package engine_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/processtest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// server returns the pid of an engine's serving process.
func (r *running) server(t *testing.T) (pid int) {
	t.Helper()
	// Before the first start of a process, Go forks a short-lived one to check pidfd support:
	// that one has the supervisor's command line.
	supervisor, err := commandOf(r.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, time.Minute, "a serving process", func() bool {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", r.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", r.Process.Pid, task.Name()))
			for child := range strings.FieldsSeq(string(children)) {
				if pid, err = strconv.Atoi(child); err != nil {
					t.Fatal(err)
				}
				if command, err := commandOf(pid); err == nil && command != "" && command != supervisor {
					return true
				}
			}
		}
		return false
	})
	return pid
}

// commandOf returns the command line of a process; empty: it has ended.
func commandOf(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(text), err
}

// stop stops a process until SIGCONT.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := processtest.Stop(pid); err != nil {
		t.Fatal(err)
	}
}

func signal(t *testing.T, pid int, what unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, what); err != nil {
		t.Fatal(err)
	}
}

// A serving process that hangs, and one that is killed again and again, is replaced, and the
// device's configuration stays the same.
func TestServersAreReplaced(t *testing.T) {
	if apart(t) {
		return
	}
	e := start(t)
	e.says(t, "msg=starting")
	tl := newTunnel(t)
	tl.works(t)
	before := configuration(t)
	stop(t, e.server(t))
	e.says(t, "msg=\"the serving process has ended")
	for range 10 {
		tl.works(t)
		killed := e.server(t)
		signal(t, killed, unix.SIGKILL)
		polltest.Until(t, time.Minute, "another process", func() bool { return e.server(t) != killed })
	}
	tl.works(t)
	// Keepalive intervals are restored last, some peers at a time.
	polltest.Until(t, time.Minute, "the configuration", func() bool { return configuration(t) == before })
}

// configuration returns what the device's socket says, without what traffic changes.
func configuration(t *testing.T) string {
	t.Helper()
	lines := strings.Split(configure(t, "get=1\n\n"), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, "_bytes=") || strings.HasPrefix(line, "last_handshake_time_")
	}), "\n")
}

// A device whose link is deleted while no server runs is dropped.
func TestALinkIsDeletedWithoutAServer(t *testing.T) {
	if apart(t) {
		return
	}
	e := start(t)
	e.says(t, "msg=starting")
	newTunnel(t).works(t)
	server := e.server(t)
	stop(t, server)
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	signal(t, server, unix.SIGKILL)
	polltest.Until(t, time.Minute, "the device is dropped", func() bool { return len(ask(t, control.Message{Op: control.List}).Devices) == 0 })
}

// A control socket that was removed is restored.
func TestAControlSocketIsRemoved(t *testing.T) {
	if apart(t) {
		return
	}
	e := start(t)
	e.says(t, "msg=starting")
	tl := newTunnel(t)
	if err := os.Remove(control.Path); err != nil {
		t.Fatal(err)
	}
	e.says(t, "msg=\"restored the control socket")
	tl.works(t)
	if list := ask(t, control.Message{Op: control.List}).Devices; len(list) != 1 {
		t.Errorf("the engine serves %v", list)
	}
}

// An engine that hung and was replaced waits when it runs again.
func TestAnEngineThatHungWaits(t *testing.T) {
	nstest.Long(t)
	first := start(t)
	first.says(t, "msg=starting")
	newTunnel(t).works(t)
	stop(t, first.Process.Pid)
	second := start(t)
	second.says(t, "msg=starting")
	signal(t, first.Process.Pid, unix.SIGCONT)
	first.says(t, "msg=\"another engine serves: waiting for its end\"")
	second.says(t, "msg=\"another engine waits\"")
}

// An engine that hangs is replaced by one that "start" starts.
func TestStartReplacesAnEngineThatHangs(t *testing.T) {
	if apart(t) {
		return
	}
	nstest.Namespaces(t)
	hangs, err := control.Listen(control.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	if err := enginetest.Command("start").Run(); err != nil {
		t.Fatal(err)
	}
	if !ask(t, control.Message{Op: control.End}).Changed {
		t.Error("the engine that serves isn't the one that was started")
	}
}

// A serving process that hangs during an upgrade is replaced, on either side, and the upgrade
// succeeds.
func TestAServerHangsDuringAnUpgrade(t *testing.T) {
	nstest.Long(t)
	for _, hangs := range []string{"old", "new"} {
		t.Run(hangs, func(t *testing.T) {
			old := start(t)
			old.says(t, "msg=starting")
			tl := newTunnel(t)
			tl.works(t)
			next := start(t)
			old.says(t, "msg=\"another engine waits\"")
			if hangs == "old" {
				stop(t, old.server(t))
			}
			signal(t, old.Process.Pid, unix.SIGTERM)
			if hangs == "new" {
				stop(t, next.server(t))
			}
			if err := <-old.ended; err != nil {
				t.Errorf("the old engine ends with %v", err)
			}
			next.says(t, "msg=starting")
			tl.works(t)
		})
	}
}
