package kube

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Tracked reports whether an object has metadata.managedFields, all of them set by manager
// with updates and patches.
//
// Maintaining them is the most expensive part of a small patch for an API server, and only
// useful for objects with several owners. A patch with [Untracked] ends it, until the next
// server-side apply by any client: see NewSkipNonAppliedManager in
// k8s.io/apimachinery/pkg/util/managedfields.
func Tracked(object metav1.Object, manager string) bool {
	fields := object.GetManagedFields()
	for i := range fields {
		if f := &fields[i]; f.Manager != manager || f.Operation != metav1.ManagedFieldsOperationUpdate {
			return false
		}
	}
	return len(fields) > 0
}

// Untracked is the value of metadata.managedFields in a patch that clears them: a list with
// one empty entry (Kubernetes documentation, "Server-Side Apply", "Clearing
// managedFields"). The patch must have the resourceVersion of the object that was Tracked,
// or else may remove what another client has applied since.
func Untracked() []metav1.ManagedFieldsEntry { return []metav1.ManagedFieldsEntry{{}} }
