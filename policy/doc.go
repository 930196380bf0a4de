// Package policy reconciles Calico GlobalNetworkSets in the local cluster with the addresses
// of labelled pods in remote clusters, so that local network policies can select those pods
// by labels.
//
// The value of a pod's label is the name of its set; together with the namespace and the
// cluster it is an [Identity]. Each remote cluster has an independent loop:
//
//	pods of the remote ─► Members ─► Desired ─► Ease ─► Diff ─► writer
//	sets of the local cluster ──────┴───────────┴───────┴───────┘
//
// Members has the desired addresses of each set, Desired computes the objects and their
// names, Ease retains an address until the object that it moves to has it, and Diff returns
// the objects to write. The last three are pure functions. The writer writes several sets
// concurrently, each one by one call at a time.
package policy
