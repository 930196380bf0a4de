// Package virtual translates the addresses of a remote's pods to those by which other clusters
// know them, by the maps of pod subnets that the remote's nodes publish.
//
// Each node has its own map, so that a new map of a cluster is followed node by node, as its
// agents are updated. Maps are untrusted input: callers check the results against what is
// configured for the remote.
package virtual
