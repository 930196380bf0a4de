// Package published has what a cluster publishes for other clusters: labelled Services to be
// mirrored or merged, and exported ones, each with its EndpointSlices.
//
//	feeds of a cluster ──> Source ──> Set: Service(key), Slices(key)
//	                                   │
//	                                   └──> Watcher: which keys changed, which nodes have endpoints
//
// A [Set] is for one purpose, because Services are selected by labels or by ServiceExports, and
// API servers send no others. All sets are read and asked alike. A Set isn't safe for concurrent
// use.
package published
