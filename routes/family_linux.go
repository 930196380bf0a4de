package routes

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// families returns the address families that the kernel supports. One that is disabled at
// boot (ipv6.disable=1) has neither routes nor rules, and no packets that could leave in
// plaintext. If in doubt, a family counts as supported.
func (t *Table) families() []int {
	all := []int{unix.AF_INET, unix.AF_INET6}
	var supported []int
	for _, family := range all {
		if !errors.Is(t.probe(family), unix.EAFNOSUPPORT) {
			supported = append(supported, family)
		}
	}
	if missing := len(all) - len(supported); missing != t.missing {
		t.missing = missing
		t.log.Info("address families of the kernel", "ipv4", has(supported, netip.IPv4Unspecified()), "ipv6", has(supported, netip.IPv6Unspecified()))
	}
	return supported
}

// probe checks a family by opening a socket, which needs no privileges.
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
