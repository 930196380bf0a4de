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
// All writes are checked, by UID and resource version, but that alone doesn't replace the
// Ledger: while a watch lags, each further write of an object would conflict until the watch
// has caught up, also the one that removes an address. The mutation cache of client-go
// (cache.NewIntegerResourceVersionMutationCacheWithOptions) doesn't report changes, doesn't
// cache deletions, and doesn't detect that a server was restored from a backup.
package keep
