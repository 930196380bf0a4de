// Package policy reconciles Calico GlobalNetworkSets in the local cluster with the addresses
// of labelled pods in remote clusters, so that local network policies can select those pods
// by labels.
//
// The value of a pod's label is the name of its set; together with the namespace and the
// cluster it is an [Identity], the key of everything here:
//
//	pods of a remote ──► index by set ───┐                  ┌── Desired ── Diff ── writes
//	                                     ├─► keys ─► reconcile(key)             │
//	sets of this cluster ► index by set ─┘                  └──── responses ◄───┘
//
// An event only adds keys to a queue. A reconciliation lists the pods and the objects of one
// set, computes its desired objects, and writes those that differ, what takes addresses away
// first. Desired and Diff are pure functions. Several sets are reconciled at a time, each by
// one worker.
package policy
