package routes

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// families returns the address families that the kernel has. One that was switched
// off at boot (ipv6.disable=1) has neither routes nor rules, and no packets that
// could leave in plaintext. In doubt a family is there.
func (t *Table) families() []int {
	all := []int{unix.AF_INET, unix.AF_INET6}
	var there []int
	for _, family := range all {
		if !errors.Is(t.probe(family), unix.EAFNOSUPPORT) {
			there = append(there, family)
		}
	}
	if told := len(all) - len(there); told != t.told {
		t.told = told
		t.log.Info("address families of the kernel", "ipv4", has(there, netip.IPv4Unspecified()), "ipv6", has(there, netip.IPv6Unspecified()))
	}
	return there
}

// probe asks the kernel for a family by what needs no rights.
func probe(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func has(families []int, addr netip.Addr) bool {
	for _, f := range families {
		if addr.Is4() == (f == unix.AF_INET) {
			return true
		}
	}
	return false
}
