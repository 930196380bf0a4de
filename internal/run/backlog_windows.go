package run

import "net"

// setBacklog leaves it as it is: on Windows there are only programs that serve nobody.
func setBacklog(*net.TCPListener) {}
