package run

import "net"

// setBacklog does nothing: programs on Windows don't serve.
func setBacklog(*net.TCPListener) {}
