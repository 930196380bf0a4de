package tunnel

import "fmt"

// The implementations of the WireGuard protocol. Auto is a setting only, which prefers the
// kernel; a device has one of the other two.
const (
	Auto      = "auto"
	Kernel    = "kernel"
	Userspace = "userspace"
)

func checkBackend(backend string) error {
	switch backend {
	case Auto, Kernel, Userspace:
		return nil
	}
	return fmt.Errorf("backend %q is not one of %s, %s, %s", backend, Auto, Kernel, Userspace)
}
