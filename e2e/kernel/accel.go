package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Ways in which qemu runs the machine's instructions.
const (
	accelAuto = "auto"
	accelKVM  = "kvm"
	accelTCG  = "tcg"
)

// usableKVM reports whether this machine can run others itself: its processor
// says so in cpuinfo (the content of /proc/cpuinfo), and the file at device
// (/dev/kvm) can create a machine. The device alone isn't enough: some virtual machines have
// one for special guests only, on which Debian's kernel doesn't boot.
func usableKVM(cpuinfo, device string) bool {
	if !virtualizes(cpuinfo) {
		return false
	}
	kvm, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer kvm.Close()
	// KVM_CREATE_VM of the kernel's Documentation/virt/kvm/api.rst, with the
	// default type of machine.
	const createVM = 0xAE01
	fd, err := unix.IoctlRetInt(int(kvm.Fd()), createVM)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// virtualizes looks for the processor flags of Intel's and AMD's hardware
// virtualization.
func virtualizes(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, flags, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "flags" {
			continue
		}
		for flag := range strings.FieldsSeq(flags) {
			if flag == "vmx" || flag == "svm" {
				return true
			}
		}
	}
	return false
}

// accelerators returns what to try for a choice of -accel, best first. KVM that
// looks usable may yet be unable to run this kernel, so emulation is always the
// last resort of accelAuto.
func accelerators(choice string, kvm bool) ([]string, error) {
	switch choice {
	case accelKVM, accelTCG:
		return []string{choice}, nil
	case accelAuto:
		all := []string{accelKVM, accelTCG}
		if !kvm {
			all = slices.Delete(all, 0, 1)
		}
		return all, nil
	}
	return nil, fmt.Errorf("-accel %q: want %s, %s or %s", choice, accelAuto, accelKVM, accelTCG)
}
