package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// portHolder is the owner of a UDP port in this network namespace.
type portHolder struct {
	known  bool   // the port is taken
	device string // a WireGuard device; empty: a process
	ours   bool   // the device has an alias of ours

	pid  int // 0: not visible from here
	name string
	uid  int
	port int
}

// String describes the owner for an operator.
func (h portHolder) String() string {
	switch {
	case h.device != "":
		return fmt.Sprintf("the WireGuard device %s", printable.Text(h.device, printable.Short))
	case h.pid != 0:
		return fmt.Sprintf("the process %s (pid %d)", printable.Text(h.name, printable.Short), h.pid)
	}
	return fmt.Sprintf("another process or kernel device of this host (user %d; run 'ss -ulnp sport = :%d' there)", h.uid, h.port)
}

// portHolder returns the owner of the device's port. It only reads: a trial bind would take
// the port from a process that binds it at the same moment.
func (d *Device) portHolder(ctx context.Context) (portHolder, error) {
	sockets, err := boundSockets(d.cfg.ListenPort)
	if err != nil || len(sockets) == 0 {
		return portHolder{}, err
	}
	// A socket of the kernel has no process, and one of this process belongs to one of our
	// devices.
	links, err := findLinks(ctx, func(l link) bool {
		_, ours := remoteOf(l.alias)
		return l.name != d.cfg.Name && (l.backend == Kernel || ours && l.backend == Userspace)
	})
	if err != nil {
		return portHolder{}, err
	}
	for _, l := range links {
		if found, err := d.control.Device(l.name); err == nil && l.up && found.ListenPort == d.cfg.ListenPort {
			_, ours := remoteOf(l.alias)
			return portHolder{known: true, device: l.name, ours: ours}, nil
		}
	}
	holder := portHolder{known: true, uid: sockets[0].uid, port: d.cfg.ListenPort}
	for _, s := range sockets {
		if pid, found := socketOwner(s.inode); found {
			comm, _ := os.ReadFile(procPath(pid, "comm"))
			holder.pid, holder.name = pid, strings.TrimSpace(string(comm))
			break
		}
	}
	return holder, nil
}

// boundSocket is a line of /proc/net/udp or udp6.
type boundSocket struct {
	inode string
	uid   int
}

// boundSockets returns the sockets of this network namespace that are bound to a port, with
// any address and family: each of them prevents listening on all addresses.
func boundSockets(port int) ([]boundSocket, error) {
	var found []boundSocket
	for _, table := range []string{"udp", "udp6"} {
		file, err := os.Open("/proc/thread-self/net/" + table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // A kernel without IPv6 has no udp6.
		}
		if err != nil {
			return nil, fmt.Errorf("read UDP sockets: %w", err)
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if s, ok := parseBoundSocket(lines.Text(), port); ok {
				found = append(found, s)
			}
		}
		err = lines.Err()
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("read UDP sockets: %w", err)
		}
	}
	return found, nil
}

// parseBoundSocket parses a line (Documentation/networking/proc_net_tcp.rst): the second
// column is the local address and port in hexadecimal, the eighth the user, the tenth the
// inode.
func parseBoundSocket(line string, port int) (boundSocket, bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return boundSocket{}, false
	}
	_, hex, found := strings.Cut(fields[1], ":")
	local, err := strconv.ParseUint(hex, 16, 16)
	if !found || err != nil || int(local) != port {
		return boundSocket{}, false
	}
	uid, err := strconv.Atoi(fields[7])
	if err != nil {
		return boundSocket{}, false
	}
	return boundSocket{inode: fields[9], uid: uid}, true
}

// socketOwner returns the process with a socket, among the visible ones: a container sees
// its own.
func socketOwner(inode string) (pid int, found bool) {
	want := "socket:[" + inode + "]"
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0, false
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		files, err := os.ReadDir(procPath(pid, "fd"))
		if err != nil {
			continue // It has ended, or access is denied.
		}
		if slices.ContainsFunc(files, func(f fs.DirEntry) bool {
			target, err := os.Readlink(procPath(pid, "fd", f.Name()))
			return err == nil && target == want
		}) {
			return pid, true
		}
	}
	return 0, false
}

func procPath(pid int, names ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(pid)}, names...)...)
}
