package tunnel

// The implementations of the WireGuard protocol. Auto is a setting only, which prefers the
// kernel; a device has one of the other two.
const (
	Auto      = "auto"
	Kernel    = "kernel"
	Userspace = "userspace"
)
