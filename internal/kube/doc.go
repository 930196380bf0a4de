// Package kube has clients of the local and the remote API servers, and watches that
// cache trimmed objects.
//
// A remote cluster may be down, slow, misconfigured, removed or hostile. None of that
// terminates or blocks the process; it shows in [Watch.Err], [Watch.LastContact] and the
// metrics.
package kube
