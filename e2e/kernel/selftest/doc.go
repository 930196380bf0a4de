// Package selftest has the tests of the emulated machine itself. They say
// whether the machine offers what the tests of other packages take for granted,
// so that a broken machine isn't mistaken for a broken product.
package selftest
