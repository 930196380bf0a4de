package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// podMemory is less than deploy/wireguard/daemonset.yaml gives an engine.
const podMemory = 256 << 20

// dead is how many peers never answer.
const dead = 20

// An engine that is flooded takes no more memory than a small container has, and goes on
// carrying traffic: by one pod, to peers of which one answers and the others never did, and
// by a sender of garbage from outside.
func TestFloods(t *testing.T) {
	nstest.Root(t)
	b := &bench{options: options{pairs: 1, seconds: 2 * time.Second, rate: 200_000}, dir: t.TempDir()}
	var err error
	// Never with the race detector, which takes a multiple of the memory.
	if b.self, err = programs.BuildPackage(t.Context(), programs.Module+"/e2e/bench/packets", filepath.Join(b.dir, "packets")); err != nil {
		t.Fatal(err)
	}
	server := b.self
	group, err := testbed.NewMemoryGroup(fmt.Sprintf("semaphore-flood-%d", os.Getpid()), podMemory)
	if err != nil {
		t.Logf("NO CONTROL GROUP ON THIS MACHINE: %v", err)
		group = nil
	} else if server, err = group.Wrap(t.TempDir(), b.self); err != nil {
		t.Fatal(err)
	}
	b.sides[0] = &side{name: "engine"}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
		if group == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := testbed.Wait(ctx, "the end of the control group", func(context.Context) error { return group.Remove() }); err != nil {
			t.Error(err)
		}
	})
	// The second end has all the memory there is: it is the first that is flooded.
	s := b.sides[0]
	if err := s.open(filepath.Join(b.dir, "engine"), [2][]string{{server, "serve"}, {b.self, "serve"}}, dead); err != nil {
		t.Fatal(err)
	}
	carries := func(when string) {
		t.Helper()
		got, err := b.tcp(t.Context(), s, s.spaces, inside, 1)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got["Gbit/s"] == 0 {
			t.Errorf("%s nothing is carried", when)
		}
		t.Logf("%s: %.2f Gbit/s, %.0f MB resident", when, got["Gbit/s"], got["MB resident, sender"])
	}
	carries("before")
	const long = "5s"
	rate := fmt.Sprint(b.rate)
	for _, flood := range []struct {
		name string
		end  int
		args []string
	}{
		{"to a peer that answers", 0, []string{"udp-send", "10.9.0.2:5202", "1300", rate, long}},
		{"small, to a peer that answers", 0, []string{"udp-send", "10.9.0.2:5202", "64", rate, long}},
		{"to peers that don't", 0, []string{"udp-spread", "10.9.0.3:5201", fmt.Sprint(dead), "1300", rate, long}},
		{"of garbage", 1, []string{"garbage", "192.0.2.1:51820", rate, long}},
	} {
		other, err := b.start(s.spaces[flood.end], flood.args...)
		if err != nil {
			t.Fatal(err)
		}
		carries("in a flood " + flood.name)
		select {
		case <-other.Done():
		case <-time.After(time.Minute):
			other.Kill()
			t.Errorf("the flood %s doesn't end", flood.name)
		}
	}
	carries("after")
	var peak int64
	if group != nil {
		var kills int
		peak, kills, err = group.Peak()
		if err = errors.Join(err, s.servers[0].Err()); err != nil {
			t.Error(err)
		}
		if kills != 0 {
			t.Errorf("the kernel has killed %d times for memory", kills)
		}
	}
	if !s.servers[0].Running() {
		t.Errorf("the engine has ended: %s", s.servers[0].Tail(5))
	}
	t.Logf("at most %d MB of %d, with what the kernel keeps for it", peak>>20, podMemory>>20)
}
