// Package keep is what a controller needs to keep objects of one cluster as they
// must be, besides knowing what that is:
//
//	watch ─► Ledger ─► what changed ─► (the controller: which keys?) ─► Writer ─► Apply
//	           ▲                                                                   │
//	           └──────────────── Wrote, Deleted ───────────────────────────────────┘
//
// A [Ledger] knows the objects that are there: what a watch shows, and over that
// what was written a moment ago and the watch doesn't show yet. A [Writer] calls
// Apply for keys that may differ, one at a time for each, and again after
// failures.
//
// The mutation cache of client-go (cache.NewIntegerResourceVersionMutationCacheWithOptions)
// isn't enough for the first: it doesn't say what changed, knows no deletions of
// our own, and believes its writes against a server restored from a backup until
// they expire.
package keep
