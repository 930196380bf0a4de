// Package policy keeps Calico GlobalNetworkSets in the local cluster that hold
// the addresses of labelled pods in remote clusters, so that local network
// policies can select those pods by labels.
//
// A pod's label gives the name of its set; with its namespace and its cluster
// that is an [Identity]. Each remote cluster has a loop of its own, which knows
// nothing of the others:
//
//	pods of the remote ─► Members ─► Plan ─► Ease ─► Diff ─► writer
//	sets of the local cluster ──────┴────────┴───────┴───────┘
//
// Members says which addresses each set must hold, Plan which objects hold
// them, and under which names, Ease keeps an address where it is until the
// object that it moves to has it, Diff finds the objects to write. All four
// are pure functions of whole states. The writer does one write at a time for
// each object, and several objects at the same time.
package policy
