package tunnel

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// Flags for measuring:
//
//	go test ./tunnel -run CostOfProbes -v -probe-seconds=20
//	go run ./e2e/kernel -v -run CostOfProbes -args '-probe-seconds=20' ./tunnel
var (
	probeSeconds = flag.Int("probe-seconds", 1, "how long TestCostOfProbes measures")
	probeRate    = flag.Int("probe-rate", 260, "how many probes each side sends a second: as with 500 and 5,000 peers")
)

// The processor time for probing, and for answering as many probes, as on both sides of a
// tunnel. It only logs the cost; it fails only without answers.
func TestCostOfProbes(t *testing.T) {
	nstest.Long(t)
	if families() < 2 {
		t.Skip("this kernel was booted without IPv6")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, backend)
		meet(t, a, b, 0)
		probed(t, a, b)
		sites := []*site{a, b}
		var probers []*Prober
		for _, s := range sites {
			if err := s.ns.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
			}); err != nil {
				t.Fatal(err)
			}
			probers = append(probers, proberOf(t, s))
		}
		sent, answers := 0, 0
		began, before, machine := time.Now(), processorTime(t, a.pid, b.pid), busy(t)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range *probeSeconds * 10 {
			<-tick.C
			for i, p := range probers {
				if err := p.Receive(func(Answer) { answers++ }); err != nil {
					t.Fatal(err)
				}
				for range *probeRate / 10 {
					if err := p.Send(LinkLocal(sites[1-i].key), false); err != nil {
						t.Fatal(err)
					}
					sent++
				}
			}
		}
		took, ours, all := time.Since(began), processorTime(t, a.pid, b.pid)-before, busy(t)-machine
		polltest.Until(t, time.Minute, "an answer", func() bool {
			for _, p := range probers {
				if err := p.Receive(func(Answer) { answers++ }); err != nil {
					t.Fatal(err)
				}
			}
			return answers > 0
		})
		share := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() / float64(len(sites)) }
		t.Logf("%s: %.0f probes a second out and as many answered: %.2f%% of a core in this side's processes, of all that the machine did %.2f%%; %d of %d answered",
			backend, float64(sent)/2/took.Seconds(), share(ours), share(all), answers, sent)
	})
}

const clockTick = 10 * time.Millisecond // USER_HZ is 100 on every machine of today

// withChildren returns processes with their child processes.
func withChildren(pids ...int) []int {
	for i := 0; i < len(pids); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		for _, list := range lists {
			children, _ := os.ReadFile(list) // A thread that has ended has none.
			for _, child := range strings.Fields(string(children)) {
				if pid, err := strconv.Atoi(child); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// processorTime is the processor time of this process, of others, and of their children.
func processorTime(t *testing.T, pids ...int) (sum time.Duration) {
	t.Helper()
	for _, pid := range withChildren(pids...) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// proc_pid_stat(5): utime and stime are the 12th and 13th after the name.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		sum += ticks(t, fields[11]) + ticks(t, fields[12])
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		t.Fatal(err)
	}
	return sum + time.Duration(self.Utime.Nano()+self.Stime.Nano())
}

// busy is the total non-idle time of the machine's processors.
func busy(t *testing.T) (sum time.Duration) {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line)[1:9] {
		if i != 3 && i != 4 { // idle, iowait
			sum += ticks(t, field)
		}
	}
	return sum
}

func ticks(t *testing.T, field string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(field)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n) * clockTick
}
