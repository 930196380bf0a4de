//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mount mounts the file systems that programs find on an ordinary machine.
func mount() error {
	for _, m := range []struct{ target, kind, options string }{
		{"/dev", "devtmpfs", "mode=0755"},
		{"/dev/shm", "tmpfs", "mode=1777"},
		{"/proc", "proc", ""},
		{"/sys", "sysfs", ""},
		{"/tmp", "tmpfs", "mode=1777"},
		{"/run", "tmpfs", "mode=0755"},
		{"/var/lib", "tmpfs", "mode=0755"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.target, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// openPort opens a serial port in raw mode, so that bytes pass unchanged.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	// os.File.Fd would make the descriptor blocking, which a port may be: only
	// one message is written at a time.
	settings, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("settings of %s: %w", path, err)
	}
	settings.Oflag = 0
	settings.Lflag = 0
	settings.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, settings); err != nil {
		return nil, fmt.Errorf("settings of %s: %w", path, err)
	}
	return port, nil
}

// load loads a kernel module from its file.
func load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load module: %w", err)
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}

// loopbackUp sets lo up, in the machine's first network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// raiseLimits allows programs as many open files as a container runtime does;
// the kernel alone would stop them at 4096.
func raiseLimits() error {
	const files = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("raise limit of open files: %w", err)
	}
	return nil
}
