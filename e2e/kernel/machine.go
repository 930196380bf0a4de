package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// Reasons why a machine ended that have nothing to do with what it ran.
var (
	errNotUp    = errors.New("the machine did not start in time")
	errHung     = errors.New("the machine hangs")
	errPanicked = errors.New("the kernel panicked")
	errLost     = errors.New("the machine ended before its plan did")
)

// machine is a virtual machine that boots a kernel with a file system and runs
// the plan that is in it.
type machine struct {
	// program is qemu.
	program        string
	kernel, initrd string
	accel          string
	memory, cpus   int
	// parameters are more words for the kernel's command line.
	parameters string
	// bootTimeout is the time until the first message; silence the longest time
	// between two messages after that.
	bootTimeout, silence time.Duration
}

// args returns qemu's arguments. The kernel's console and the messages leave
// qemu through the files console and report.
func (m machine) args(console, report string) []string {
	accel, cpu, parameters := m.accel, "max", m.parameters
	if accel == accelTCG {
		// One thread serves all processors: with several, one of them may go on for ever
		// with the breakpoint that the kernel sets for a moment where it patches its own
		// code, as it does each time the first UDP tunnel comes or the last one goes.
		accel = "tcg,thread=single"
		// What makes a processor fast or safe costs one that is emulated: the wide
		// instructions that ciphers choose when they find them, copies that are emulated
		// byte by byte (erms), flags at each of the kernel's accesses to programs' memory
		// (smap), a fifth level of page tables (la57), clearing pages twice, and the ways
		// around speculation, of which there is none. Nor does the kernel trust the only
		// clock that doesn't take a device.
		cpu += ",-avx,-avx2,-erms,-smap,-la57"
		parameters = "tsc=reliable mitigations=off init_on_alloc=0 " + parameters
	}
	return []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none",
		"-M", "q35", "-cpu", cpu, "-accel", accel,
		"-m", fmt.Sprint(m.memory), "-smp", fmt.Sprint(m.cpus),
		"-rtc", "base=utc",
		// Without a source of entropy keys wait for minutes.
		"-device", "virtio-rng-pci",
		"-serial", "file:" + console, "-serial", "file:" + report,
		"-kernel", m.kernel, "-initrd", m.initrd,
		// A fault in the kernel ends the machine (oops=panic), at once
		// (panic=-1), because what runs after it proves nothing.
		"-append", strings.TrimSpace("console=ttyS0 quiet loglevel=5 oops=panic panic=-1 " + parameters),
	}
}

// run boots the machine and hands each message to receive until it powers off.
// The kernel's log goes to console. The error says what became of the machine;
// how its programs ended is in the messages. run must be called on a thread
// that lives until it returns, because qemu is killed when that thread ends.
func (m machine) run(ctx context.Context, console io.Writer, receive func(wire.Message)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	consoleOut, consoleIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer consoleOut.Close()
	reportOut, reportIn, err := os.Pipe()
	if err != nil {
		return errors.Join(err, consoleIn.Close())
	}
	defer reportOut.Close()

	// ExtraFiles become descriptors 3 and 4 of qemu.
	cmd := exec.CommandContext(ctx, m.program, m.args("/dev/fd/3", "/dev/fd/4")...)
	cmd.ExtraFiles = []*os.File{consoleIn, reportIn}
	// Ctrl-C reaches the whole group of processes: qemu ends when we say so.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	var complaint strings.Builder
	cmd.Stderr = &complaint
	err = cmd.Start()
	if err := errors.Join(err, consoleIn.Close(), reportIn.Close()); err != nil {
		return fmt.Errorf("start %s: %w", m.program, err)
	}

	watch := newWatchdog(m.bootTimeout, m.silence, cancel)
	defer watch.stop()
	kernelLog := &panicFinder{w: console}
	var done, up bool
	var consoleErr error
	var readers sync.WaitGroup
	readers.Go(func() { _, consoleErr = io.Copy(kernelLog, consoleOut) })
	readErr := wire.Read(reportOut, func(message wire.Message) {
		watch.heard()
		up = true
		done = done || message.Kind == wire.KindDone
		receive(message)
	})
	if readErr != nil {
		cancel(readErr)
	}
	readers.Wait()
	exit := cmd.Wait()

	switch {
	case readErr != nil:
		return readErr
	case kernelLog.found:
		return errPanicked
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case exit != nil:
		return fmt.Errorf("%s: %w: %s", m.program, exit, strings.TrimSpace(complaint.String()))
	case consoleErr != nil:
		return fmt.Errorf("read console: %w", consoleErr)
	case !up:
		return errNotUp
	case !done:
		return errLost
	}
	return nil
}

// watchdog calls cancel when a machine is silent for too long.
type watchdog struct {
	timer   *time.Timer
	silence time.Duration
	mu      sync.Mutex
	reason  error
}

func newWatchdog(boot, silence time.Duration, cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{silence: silence, reason: fmt.Errorf("%w (%v)", errNotUp, boot)}
	w.timer = time.AfterFunc(boot, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		cancel(w.reason)
	})
	return w
}

// heard puts the end off.
func (w *watchdog) heard() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reason = fmt.Errorf("%w: no message for %v", errHung, w.silence)
	w.timer.Reset(w.silence)
}

func (w *watchdog) stop() { w.timer.Stop() }

// panicFinder passes the kernel's log on and notices a panic in it.
type panicFinder struct {
	w     io.Writer
	found bool
	tail  string
}

// panicMark begins the line that the kernel prints when it panics.
const panicMark = "Kernel panic - not syncing"

func (p *panicFinder) Write(data []byte) (int, error) {
	seen := p.tail + string(data)
	p.found = p.found || strings.Contains(seen, panicMark)
	p.tail = seen[max(0, len(seen)-len(panicMark)):]
	return p.w.Write(data)
}
