package handover

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/processtest"
)

// stepsVariable is in the environment of an engine that says which step of a hand-over
// it has come to, and waits until it may go on.
const stepsVariable = "HANDOVER_TEST_STEPS"

// Steps of an engine, in their order. The first three are of the old engine.
const (
	stepPause = "stops reading UDP"
	stepShut  = "stops reading the TUN"
	stepDrain = "drains"
	stepUp    = "reads UDP"
	stepGreet = "begins a handshake"
	stepOpen  = "reads the TUN"
	stepHere  = "has the device"
)

// steps says them, each once.
type steps struct {
	control *net.UnixConn // to the test
	mu      sync.Mutex
	said    map[string]bool
}

// newSteps returns nil where the environment asks for no steps.
func newSteps() (*steps, error) {
	if os.Getenv(stepsVariable) == "" {
		return nil, nil
	}
	fd, err := unix.Dup(fdControl) // which is closed with its file
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "control")
	defer func() { _ = file.Close() }()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	control, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("control is no Unix socket")
	}
	return &steps{control: control, said: make(map[string]bool)}, nil
}

// at says a step, and returns when the engine may go on.
func (s *steps) at(step string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said[step] {
		return
	}
	s.said[step] = true
	fmt.Println(step)
	_, _ = s.control.Read(make([]byte, 1))
}

// steppedSockets and steppedTUN say the steps that are seen there.
type steppedSockets struct {
	Sockets
	*steps
	takes bool
}

func (s *steppedSockets) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if s.takes {
		s.at(stepUp)
	}
	return s.Sockets.Open(port)
}

func (s *steppedSockets) Send(packets [][]byte, to conn.Endpoint) error {
	if s.takes && messageType(packets[0]) == device.MessageInitiationType {
		s.at(stepGreet)
	}
	return s.Sockets.Send(packets, to)
}

func (s *steppedSockets) Pause(paused bool) {
	if paused {
		s.at(stepPause)
	}
	s.Sockets.Pause(paused)
}

type steppedTUN struct {
	tun.Device
	*steps
}

func (s *steppedTUN) SetReadDeadline(at time.Time) error {
	if at.IsZero() {
		s.at(stepOpen)
	} else {
		s.at(stepShut)
	}
	return s.File().SetReadDeadline(at)
}

// starved hands over to a new process, and stops some processes at a step for a while, as
// on a node without free processor time.
func (s *site) starved(t *testing.T, step string, old, fresh bool, pause time.Duration) {
	t.Helper()
	oldEnd, newEnd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	processes := []*process{s.engine, s.start(t, newEnd)}
	var targets []*process
	for i, stop := range []bool{old, fresh} {
		if stop {
			targets = append(targets, processes[i])
		}
	}
	each := func(do func(*process) error) {
		for _, p := range targets {
			if err := do(p); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, unix.ESRCH) {
				t.Error(err)
			}
		}
	}
	s.engine.give(t, oldEnd)
	var wg sync.WaitGroup
	reached := false
	for i, p := range processes {
		wg.Go(func() {
			for {
				line, err := p.says.ReadString('\n')
				said := strings.TrimSpace(line)
				if err != nil || said == "here" {
					return
				}
				if said == step {
					reached = true // by one of them only
					each(func(p *process) error { return processtest.Stop(p.Process.Pid) })
				}
				if _, err := p.control.Write([]byte{0}); err != nil {
					t.Errorf("process %d: %v", i, err)
				}
				if said == step {
					time.Sleep(pause)
					each(func(p *process) error { return p.Process.Signal(unix.SIGCONT) })
				}
			}
		})
	}
	wg.Wait()
	if err := <-s.engine.ended; err != nil {
		t.Fatal(err)
	}
	s.engine = processes[1]
	if step != "" && !reached {
		t.Errorf("no engine says that it %s", step)
	}
}

// missing returns how many of those between two have not arrived.
func (s *stream) missing(first, last uint64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := first; i < last; i++ {
		if i >= uint64(len(s.arrived)) || !s.arrived[i] {
			n++
		}
	}
	return n
}

// patience is the time without an arrival after which missing packets count as lost.
const patience = 5 * time.Second

var starvation = flag.Duration("starvation", 0, "how long processes don't run in TestStarvedProcessesHandOver, which measures; 0: it doesn't")

// Engines that aren't scheduled for a while, at any step, lose no packets that the kernel's
// queues can hold. This measurement takes some minutes; the tests of relayed messages cover
// its findings:
//
//	go test -v -run TestStarvedProcessesHandOver . -args -rate 8000 -packet-size 1380 -starvation 900ms -under-way 0
func TestStarvedProcessesHandOver(t *testing.T) {
	if *starvation == 0 {
		t.Skip("NOT RUN: a measurement, which -starvation asks for")
	}
	for _, step := range []string{stepPause, stepUp, stepGreet, stepShut, stepOpen, stepDrain, stepHere} {
		t.Run("one "+step, func(t *testing.T) {
			s := newSite(t, [2]string{"192.0.2.1/24", "192.0.2.2/24"})
			s.env = []string{stepsVariable + "=1"}
			wire := startCapture(t, s.far, "under0")
			out, endOut := startStream(t, s.near, s.far, "10.9.0.2:7001", *fullRate)
			defer endOut()
			in, endIn := startStream(t, s.far, s.near, "10.9.0.1:7002", *fullRate)
			defer endIn()
			polltest.Until(t, time.Minute, "packets arrive", func() bool { return out.lost() < int(out.sent.Load()) && in.lost() < int(in.sent.Load()) })
			s.starved(t, "", false, false, 0) // by one that says no steps
			for _, stopped := range []string{"old", "new", "both"} {
				before, firstOut, firstIn := overflows(t, s.near, s.far), out.sent.Load(), in.sent.Load()
				s.starved(t, step, stopped != "new", stopped != "old", *starvation)
				lastOut, lastIn := out.sent.Load(), in.sent.Load()
				var lostOut, lostIn, full int
				// Without free processor time, waiting packets arrive later.
				for end, least := time.Now().Add(patience), math.MaxInt; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					lostOut, lostIn, full = out.missing(firstOut, lastOut), in.missing(firstIn, lastIn), overflows(t, s.near, s.far)-before
					if lostOut+lostIn <= full {
						break
					}
					if lostOut+lostIn < least {
						least, end = lostOut+lostIn, time.Now().Add(patience)
					}
				}
				t.Logf("%s: lost out %d, in %d; queues of the kernel were full for %d packets", stopped, lostOut, lostIn, full)
				if lostOut+lostIn > full {
					t.Errorf("when %s engines don't run, %d packets out and %d in are lost, of which queues of the kernel had no room for %d", stopped, lostOut, lostIn, full)
				}
			}
			endOut()
			endIn()
			wire.check(t)
		})
	}
}
