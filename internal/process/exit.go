package process

// Exit codes of all programs and their commands.
const (
	ExitWell = 0
	// ExitFaults: an error occurred, or faults were found.
	ExitFaults = 1
	// ExitUnknown: no faults were found, and something couldn't be checked.
	ExitUnknown = 2
	// ExitUsage: arguments or settings are invalid (EX_USAGE of sysexits.h). The runtime of Go
	// ends a process that panics with 2.
	ExitUsage = 64
)
