// Package kube reaches the API servers of the local and the remote
// clusters, and keeps trimmed copies of what is watched there.
//
// A remote cluster is a neighbour that may be down, slow, wrongly configured
// or gone for good. Nothing in this package ends or blocks the process for
// that; it shows in [Watch.Err], [Watch.LastContact] and the metrics.
package kube
