package handover

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
	"github.com/kube-semaphore/kube-semaphore/internal/process/processtest"
)

// stepsVariable is in the environment of an engine that says which step of a hand-over
// it has come to, and waits until it may go on.
const stepsVariable = "HANDOVER_TEST_STEPS"

// Steps of an engine, in their order. The first three are of the giver.
const (
	stepPause  = "stops reading UDP"
	stepShut   = "stops reading the TUN"
	stepLinger = "lingers"
	stepUp     = "reads UDP"
	stepGreet  = "begins a handshake"
	stepOpen   = "reads the TUN"
	stepHere   = "has the device"
)

// steps says them, each once.
type steps struct {
	control *net.UnixConn // to the test
	mu      sync.Mutex
	said    map[string]bool
}

// newSteps returns nil where nobody wants to know.
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

// starved hands over to a new process, and at a step has none of some processes run for
// a while, as on a node without free processor time.
func (s *site) starved(t *testing.T, step string, old, fresh bool, pause time.Duration) {
	t.Helper()
	giver, taker, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	processes := []*process{s.engine, s.start(t, taker)}
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
	s.engine.give(t, giver)
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

// patience is how long nothing may come of what is missing.
const patience = 5 * time.Second

var starvation = flag.Duration("starvation", 0, "how long processes don't run in TestStarvedProcessesHandOver, which measures; 0: it doesn't")

// Engines that don't get to run for a while, at any step, lose nothing that the kernel
// had room for. That is a measurement of some minutes; the tests below hold what it found:
//
//	go test -v -run TestStarvedProcessesHandOver . -args -rate 8000 -packet-size 1380 -starvation 900ms -under-way 0
func TestStarvedProcessesHandOver(t *testing.T) {
	if *starvation == 0 {
		t.Skip("NOT RUN: a measurement, which -starvation asks for")
	}
	for _, step := range []string{stepPause, stepUp, stepGreet, stepShut, stepOpen, stepLinger, stepHere} {
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
			for _, who := range []string{"old", "new", "both"} {
				before, firstOut, firstIn := overflows(t, s.near, s.far), out.sent.Load(), in.sent.Load()
				s.starved(t, step, who != "new", who != "old", *starvation)
				lastOut, lastIn := out.sent.Load(), in.sent.Load()
				var lostOut, lostIn, full int
				// What waits may come late, on a machine without free processor time.
				for end, least := time.Now().Add(patience), math.MaxInt; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					lostOut, lostIn, full = out.missing(firstOut, lastOut), in.missing(firstIn, lastIn), overflows(t, s.near, s.far)-before
					if lostOut+lostIn <= full {
						break
					}
					if lostOut+lostIn < least {
						least, end = lostOut+lostIn, time.Now().Add(patience)
					}
				}
				t.Logf("%s: lost out %d, in %d; queues of the kernel were full for %d packets", who, lostOut, lostIn, full)
				if lostOut+lostIn > full {
					t.Errorf("when %s don't run, %d packets out and %d in are lost, of which queues of the kernel had no room for %d", who, lostOut, lostIn, full)
				}
			}
			endOut()
			endIn()
			wire.check(t)
		})
	}
}

// What is relayed waits for an engine that doesn't run, in order, and keeps no other
// message waiting.
func TestWhatIsRelayedWaits(t *testing.T) {
	var giver, taker engine
	pairFor(t, &giver, &taker)
	p := newPair(taker.Pair)
	defer p.close()
	const messages, size = 10000, 1500 // more than a pair has room for
	message := make([]byte, size)
	message[0] = byte(kindRelayed)
	for i := range messages {
		binary.BigEndian.PutUint32(message[1:], uint32(i))
		p.post(message)
	}
	for range 100 {
		if err := p.send(kindProgress); err != nil {
			t.Fatal(err)
		}
	}
	if err := giver.Pair.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxMessage)
	for relayed, others := 0, 0; relayed < messages || others < 100; {
		n, err := giver.Pair.Read(buf)
		switch {
		case err != nil:
			t.Fatalf("after %d messages: %v", relayed, err)
		case kind(buf[0]) != kindRelayed:
			others++
		case n != size || binary.BigEndian.Uint32(buf[1:]) != uint32(relayed):
			t.Fatalf("message %d has %d bytes, and number %d", relayed, n, binary.BigEndian.Uint32(buf[1:]))
		default:
			relayed++
		}
	}
	if n := p.lost(); n > 0 {
		t.Errorf("%d messages are lost", n)
	}
}

// What is relayed to an engine that hangs for good takes a bounded amount of memory.
func TestWhatIsRelayedIsBounded(t *testing.T) {
	var giver, taker engine
	pairFor(t, &giver, &taker)
	defer func() { _ = giver.Pair.Close() }()
	p := newPair(taker.Pair)
	defer p.close()
	message := make([]byte, 1<<16)
	for range 4 * maxPosted / len(message) {
		p.post(message)
	}
	p.posting.Lock()
	defer p.posting.Unlock()
	if p.bytes > maxPosted || p.dropped == 0 {
		t.Errorf("%d bytes wait, and %d messages are lost", p.bytes, p.dropped)
	}
}

// The giver doesn't end as long as something that was relayed to it isn't received.
func TestTheGiverReceivesWhatWasRelayed(t *testing.T) {
	s := newScene(t)
	s.old.Limits.Linger = 2 * time.Second
	var taker engine
	pairFor(t, s.old, &taker)
	defer func() { _ = taker.Pair.Close() }()
	g := &giver{Side: s.old.Side, pair: newPair(s.old.Pair)}
	defer g.pair.close()
	if err := g.look(); err != nil {
		t.Fatal(err)
	}
	s.out.end()
	s.in.end()
	const frames = 100 // more than are read ahead
	for range frames {
		if _, err := taker.Pair.Write([]byte{byte(kindRelayed), 0}); err != nil {
			t.Fatal(err)
		}
	}
	var taken atomic.Int64
	late := time.AfterFunc(3*time.Second, func() { // Nothing else comes for longer than it lingers.
		for range frames {
			<-g.pair.relayed
			taken.Add(1)
		}
	})
	defer late.Stop()
	if err := g.linger(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := taken.Load(); n != frames {
		t.Errorf("it ends when %d of %d frames are received", n, frames)
	}
	s.fresh.Device.Close()
}
