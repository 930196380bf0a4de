package tunnel

import "fmt"

// The backends: who runs the WireGuard protocol. Auto is only ever a wish,
// which prefers the kernel; a device has one of the other two.
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
	return fmt.Errorf("backend %q is none of %s, %s, %s", backend, Auto, Kernel, Userspace)
}
