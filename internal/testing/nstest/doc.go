// Package nstest creates network namespaces for tests, so that links, addresses, routes
// and packets of a test are isolated from the machine.
//
// A network namespace belongs to an operating system thread, not to a
// goroutine. Code inside Do or Run is on a locked thread of the namespace;
// goroutines that it starts are not. Code on other goroutines either opens its sockets
// inside Do (a socket stays in the namespace in which it was opened) or runs inside Do.
package nstest
