// Package mirror gives services of other clusters names in this one.
//
// A mirror is a local Service whose endpoints live in one remote cluster. A
// global service is one whose endpoints are those of all services of a
// namespace and name, in any of the clusters, this one included. Both are
// made of one Service and one EndpointSlice per slice of the origin, so that
// one changed endpoint there is one write here, and what must be here is a
// pure function of what is there.
//
//	feeds ─> pass: Snapshot ─> Desired ─> which services may differ?
//	                                            │ names
//	                                            v
//	                              keep.Writer (leader only): Diff ─> apply
//
// A Snapshot is all that is known of origins and of the mirror namespace; Desired
// and Diff are pure. Feeds hand out what changed and a Memo remembers the rest, so
// that work grows with the change.
package mirror
