package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a program to run in a Space.
type Command struct {
	// Name appears in errors.
	Name string
	// Path is the absolute path of the binary.
	Path string
	Args []string
	// Env is the whole environment besides PATH and GORACE, which are this process's.
	Env []string
	// Log is the file that takes standard output and error; it is appended to,
	// so that a restarted program keeps one log. Empty: thrown away.
	Log string
	// Mounts are private to the process, on top of those of the Space.
	Mounts []Mount
	// Session makes the process a session of its own. The kernel shares out processor
	// time among sessions as it does among containers (sched(7), autogroup).
	Session bool
}

// Process is a program that runs, or ran, in a Space.
type Process struct {
	command Command
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // valid after done
}

// Start runs a program in the Space. It is killed, with all that it started,
// when the Space is closed and when this process dies.
func (s *Space) Start(c Command) (*Process, error) {
	if !filepath.IsAbs(c.Path) {
		return nil, fmt.Errorf("start %s: %q is not an absolute path", c.Name, c.Path)
	}
	p := &Process{command: c, done: make(chan struct{})}
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE")}, c.Env...)
	// Ctrl-C in a terminal is for this process, which then ends its own.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.Session, Setsid: c.Session}
	if c.Log != "" {
		log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", c.Name, err)
		}
		defer func() { _ = log.Close() }() // The child has its own.
		p.cmd.Stdout, p.cmd.Stderr = log, log
	}
	first, err := s.initProcess()
	if err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", c.Name, s.name, err)
	}
	started := make(chan error, 1)
	go ownThread(func() {
		err := s.enter(c.Mounts)
		if err == nil {
			err = first.start(p.cmd)
		}
		started <- err
		if err != nil {
			return
		}
		s.ended(p, p.cmd.Wait())
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", c.Name, s.name, err)
	}
	if err := s.began(p); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// enter moves the calling thread, which must end afterwards, into the
// namespaces for good.
func (s *Space) enter(mounts []Mount) error {
	if err := unix.Setns(int(s.net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	// A thread that shares its root and working directory with others may not
	// change its mount namespace (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	if err := unix.Setns(int(s.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	if len(mounts) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mount namespace: %w", err)
	}
	return mountAll(s.mounts, mounts)
}

func (s *Space) began(p *Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("start %s: %s is closed", p.command.Name, s.name)
	}
	select {
	case <-p.done:
	default:
		s.running[p] = struct{}{}
	}
	return nil
}

func (s *Space) ended(p *Process, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, p)
	p.err = err
	close(p.done)
}

// PID is the process id. It stays valid after the end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// PIDs returns the ids, outside, of the processes in the Space whose program has this
// file name, the lowest first. It finds those that others started, too.
func (s *Space) PIDs(program string) (pids []int, err error) {
	first, err := s.initProcess()
	if err != nil {
		return nil, err
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first.cmd.Process.Pid))
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", program, s.name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + entry.Name()
		// Threads of the kernel and what has ended have no program.
		path, err := os.Readlink(dir + "/exe")
		if err != nil || filepath.Base(strings.TrimSuffix(path, " (deleted)")) != program {
			continue
		}
		if in, err := os.Readlink(dir + "/ns/pid"); err == nil && in == space {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// Command is what was started.
func (p *Process) Command() Command { return p.command }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil for exit code 0 and while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal. A process that has ended is an error that wraps
// os.ErrProcessDone.
func (p *Process) Signal(signal os.Signal) error { return p.cmd.Process.Signal(signal) }

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	// The one error is that it has ended already.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end with SIGTERM and waits for it. The error says
// that it didn't end with exit code 0; when ctx ends first it is killed.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.command.Name, err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("stop %s: it didn't end on SIGTERM: %w", p.command.Name, ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("stop %s: %w", p.command.Name, p.err)
	}
	return nil
}

// CPU is the processor time that the process has used, after its end.
func (p *Process) CPU() time.Duration {
	select {
	case <-p.done:
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	default:
		return 0
	}
}

// Log returns what the process, and earlier ones with the same log, printed.
func (p *Process) Log() string {
	content, err := os.ReadFile(p.command.Log)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimRight(p.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Output runs a program, named by its path or found in PATH, in the Space to
// its end and returns what it printed, standard error included.
func (s *Space) Output(ctx context.Context, program string, args ...string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	log, err := os.CreateTemp("", "sandbox-output-")
	if err != nil {
		return "", err
	}
	defer func() { _ = errors.Join(log.Close(), os.Remove(log.Name())) }()
	p, err := s.Start(Command{Name: filepath.Base(path), Path: path, Args: args, Log: log.Name()})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return p.Log(), fmt.Errorf("run %s in %s: %w", p.command.Name, s.name, ctx.Err())
	}
	if p.Err() != nil {
		return p.Log(), fmt.Errorf("run %s in %s: %w: %s", p.command.Name, s.name, p.Err(), p.Tail(3))
	}
	return p.Log(), nil
}

// onOwnThread runs f on a thread that ends afterwards and returns its error.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go ownThread(func() { done <- f() })
	return <-done
}

// ownThread, on a goroutine of its own, runs f on a thread that ends with it.
// That thread is never the main thread, which would stay as long as the
// process, and with it the namespaces that f moved it to.
func ownThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	locked := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(locked)
		f()
	}()
	<-locked
	runtime.UnlockOSThread()
}
