package process

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

func TestGroupLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"version 2, a namespace of its own": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20},
		"version 2, the least of those around": {map[string]string{
			"proc/self/cgroup": "0::/pod/agent\n", "sys/fs/cgroup/pod/agent/memory.max": "max\n", "sys/fs/cgroup/pod/memory.max": "1048576\n",
		}, 1 << 20},
		"version 1, the group's path isn't mounted": {map[string]string{
			"proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/kubepods/a\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20},
		"version 1, no limit": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"no limit":        {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"nothing mounted": {map[string]string{"proc/self/cgroup": "0::/a/b\n"}, 0},
	} {
		root := fstest.MapFS{}
		for path, content := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(content)}
		}
		if got, err := groupLimit(root); err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, c.want)
		}
	}
	if _, err := groupLimit(fstest.MapFS{}); err == nil {
		t.Error("what isn't there is no error")
	}
	broken := fstest.MapFS{"proc/self/cgroup": {Data: []byte("0::/\n")}, "sys/fs/cgroup/memory.max": {Data: []byte("much")}}
	if _, err := groupLimit(broken); err == nil {
		t.Error("a broken limit is no error")
	}
}

// TestBallast checks that garbage is collected later, and that the ballast takes no memory, in a process of its
// own: memory that was used before has to be cleared.
func TestBallast(t *testing.T) {
	const alone = "PROCESS_TEST_ALONE"
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBallast$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	state := func() (goal, resident uint64) {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		content, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Skipf("who says what is resident? %v", err)
		}
		pages, err := strconv.ParseUint(strings.Fields(string(content))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return sample[0].Value.Uint64(), pages * uint64(os.Getpagesize())
	}
	goal, resident := state()
	release := Ballast()
	later, with := state()
	release()
	if later < goal+ballastSize {
		t.Errorf("garbage is collected at %d bytes, without ballast at %d", later, goal)
	}
	if build, _ := debug.ReadBuildInfo(); slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Log("not looked at what is resident: the race detector marks all memory")
	} else if with > resident+ballastSize/2 {
		t.Errorf("%d bytes are resident, without ballast %d", with, resident)
	}
}
