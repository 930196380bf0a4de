// Package mirror mirrors services of other clusters.
//
// A mirror is a local Service with the endpoints of a service of one remote cluster. A
// global service merges the endpoints of the services with one namespace and name in all
// clusters, including the local one. Both consist of a Service and one EndpointSlice per
// slice of the origin, so that one changed endpoint is one write.
//
//	feeds ─> pass: Snapshot ─> Desired ─> which services may differ?
//	                                            │ names
//	                                            v
//	                              keep.Writer (leader only): Diff ─> apply
//
// A Snapshot has all origins and the objects of the mirror namespace; Desired and Diff are
// pure. Feeds return changes and a Memo caches the rest, so that the work of a pass grows
// with the number of changes.
package mirror
