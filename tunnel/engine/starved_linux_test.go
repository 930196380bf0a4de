package engine_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// dropped returns how many packets were dropped because the receive buffers of a port's UDP
// sockets were full (/proc/net/udp, last column).
func dropped(t *testing.T, port int) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 12 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			count, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// No packet is lost when supervisors or serving processes aren't scheduled for a while.
func TestStarvedEnginesHandOver(t *testing.T) {
	for name, stopped := range map[string]func(first, second *running) []int{
		"serving, old":    func(first, _ *running) []int { return []int{first.server(t)} },
		"serving, both":   func(first, second *running) []int { return []int{first.server(t), second.server(t)} },
		"supervisor, old": func(first, _ *running) []int { return []int{first.Process.Pid} },
		"supervisor, new": func(_, second *running) []int { return []int{second.Process.Pid} },
		"all of them": func(first, second *running) []int {
			return []int{first.Process.Pid, second.Process.Pid, first.server(t), second.server(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "serving, old" {
				nstest.Long(t)
			}
			first := start(t)
			first.says(t, "msg=starting")
			tl := newTunnel(t)
			out, in := tl.works(t)
			second := start(t)
			first.says(t, "msg=\"another engine takes over\"")
			processes := stopped(first, second)
			for _, pid := range processes {
				stop(t, pid)
			}
			time.Sleep(900 * time.Millisecond)
			for _, pid := range processes {
				signal(t, pid, unix.SIGCONT)
			}
			second.says(t, "msg=\"taken over\"")
			first.says(t, "msg=\"standing by\"")
			tl.works(t)
			for what, c := range map[string]struct {
				*counted
				first, last uint64
			}{"out": {tl.out, out, tl.out.now()}, "in": {tl.in, in, tl.in.now()}} {
				for end := time.Now().Add(5 * time.Second); c.missing(c.first, c.last) > 0 && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
				}
				lost := c.missing(c.first, c.last)
				t.Logf("%s: %d of %d packets are lost; dropped at %d and %d", what, lost, c.last-c.first, dropped(t, 51820), dropped(t, 7000))
				if lost > 0 {
					t.Errorf("%s: %d packets are lost", what, lost)
				}
			}
		})
	}
}
