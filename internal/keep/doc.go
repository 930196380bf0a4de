// Package keep has the parts of a controller that reconciles objects of one cluster,
// except the computation of the desired state:
//
//	watch ─► Ledger ─► changes ──────► (the controller: which keys?) ─► Writer ─► Apply
//	           ▲                                                                   │
//	           └──────────────── Wrote, Deleted ───────────────────────────────────┘
//
// A [Ledger] has the observed objects: those of a watch, overlaid with own writes that the
// watch doesn't show yet. A [Writer] calls Apply for keys that may differ, one call at a
// time per key, and retries after failures.
//
// The mutation cache of client-go (cache.NewIntegerResourceVersionMutationCacheWithOptions)
// doesn't report changes, doesn't cache deletions, and doesn't detect that a server was
// restored from a backup.
package keep
