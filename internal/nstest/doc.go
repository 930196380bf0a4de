// Package nstest gives tests network namespaces of their own, so that links,
// addresses, routes and packets of a test never meet those of the machine.
//
// A network namespace belongs to an operating system thread, not to a
// goroutine. Code inside Do or Run is on a locked thread of the namespace;
// goroutines that it starts are not. What must run on other goroutines either
// opens its sockets inside Do (a socket stays in the namespace it was opened
// in) or wraps its work in Do.
package nstest
