package nstest

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// WithoutNetfilter runs f on a thread without access to netfilter's netlink, as on a kernel
// built without it, and returns its error. f runs on another goroutine than the caller,
// like that of Do, and inside the namespace n unless that is nil.
func WithoutNetfilter(n *Namespace, f func() error) error {
	return onThread(func() error {
		if n != nil {
			if _, err := n.enter(); err != nil { // for good: the thread ends
				return err
			}
		}
		if err := refuseNetfilter(); err != nil {
			return fmt.Errorf("hide netfilter: %w", err)
		}
		return f()
	})
}

// refuseNetfilter installs a filter of seccomp(2) on the calling thread: sockets of
// NETLINK_NETFILTER fail with EPROTONOSUPPORT.
func refuseNetfilter() error {
	const number, family, protocol = 0, 16, 32 // in struct seccomp_data; arguments take 8 bytes
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: number, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 5},
		bpf.LoadAbsolute{Off: family, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 3},
		bpf.LoadAbsolute{Off: protocol, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.NETLINK_NETFILTER, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
}
