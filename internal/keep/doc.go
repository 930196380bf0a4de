// Package keep has the parts of a controller that reconciles objects of one cluster,
// except the computation of the desired state:
//
//	watch ─► Shown ─► changes ─► (the controller: which keys?) ─► Writer ─► Apply
//	  ▲                                                                       │
//	  └─────────────────────────── API server ◀───────────────────────────────┘
//
// [Shown] has the observed objects: what a watch has shown, alone. A [Writer] calls Apply for keys
// that may differ, one call at a time per key, and retries after failures.
//
// All writes have the UID and the resource version of the observed object as preconditions, and
// creations fail if the object exists. So a write that was planned before the watch showed an
// earlier one fails, and its key is retried when the watch has shown that: see [ErrOutdated].
package keep
