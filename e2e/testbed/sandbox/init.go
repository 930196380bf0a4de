package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// initProcess is the first process of a Space: one that does nothing, in a
// process namespace of its own. The others join that. When it dies the kernel
// kills them and whatever they started (pid_namespaces(7)), and it dies with
// the process that made the Space (PR_SET_PDEATHSIG, prctl(2)).
type initProcess struct {
	cmd  *exec.Cmd
	ns   *os.File
	done chan struct{}
}

// Init is the id of a process that does nothing, in all namespaces of the Space,
// for people who want to look around:
//
//	nsenter --target <id> --net --mount --pid
func (s *Space) Init() (pid int, err error) {
	first, err := s.initProcess()
	if err != nil {
		return 0, err
	}
	return first.cmd.Process.Pid, nil
}

// initProcess starts the first process on first use: many pods have no processes.
func (s *Space) initProcess() (*initProcess, error) {
	s.initOnce.Do(func() {
		s.init, s.initErr = s.startInit()
		if s.initErr != nil {
			s.initErr = fmt.Errorf("start the first process: %w", s.initErr)
		}
	})
	return s.init, s.initErr
}

// script mounts a /proc that shows the processes of the namespace, which only
// one of them can do: in the one of this machine a program would find another
// under its own id. Without -n, mount leaves a note in /run. The printed line means
// that it is done. What loses its parent becomes a child of the first process: one that
// ignores SIGCHLD needn't wait for them (wait(2)).
const script = "mount -n -t proc proc /proc && echo && trap '' CHLD && exec sleep infinity"

func (s *Space) startInit() (*initProcess, error) {
	i := &initProcess{cmd: exec.Command("/bin/sh", "-c", script), done: make(chan struct{})}
	i.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	ready, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ready.Close() }()
	i.cmd.Stdout = write
	i.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true,
	}
	started := make(chan error, 1)
	// The signal comes when the thread that forked ends, not the process: it
	// stays until the child has ended.
	go ownThread(func() {
		err := s.enter(nil)
		if err == nil {
			err = i.cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		// However it ends, it was killed.
		_ = i.cmd.Wait()
		close(i.done)
	})
	err = errors.Join(<-started, write.Close())
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("mount /proc: %w", err), i.kill())
	}
	if i.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/pid", i.cmd.Process.Pid)); err != nil {
		return nil, errors.Join(err, i.kill())
	}
	return i, nil
}

// start starts a program among the first one's children. The calling thread
// can't start any that aren't, afterwards.
func (i *initProcess) start(cmd *exec.Cmd) error {
	if err := unix.Setns(int(i.ns.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter the process namespace: %w", err)
	}
	return cmd.Start()
}

// kill ends all processes of the namespace.
func (i *initProcess) kill() error {
	err := i.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-i.done
	if i.ns != nil {
		err = errors.Join(err, i.ns.Close())
	}
	return err
}
