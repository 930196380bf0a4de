package kube

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// Tracking is the value of metadata.managedFields in a patch that begins them, for an object
// that has none: then the API server adds what else the patch changes.
func Tracking(manager, apiVersion string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: apiVersion,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
	}}
}

// Refused reports whether an API server would refuse a request again, because of its content
// or an admission policy.
func Refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// Untracked is the value of metadata.managedFields in a patch that clears them: a list with
// one empty entry (Kubernetes documentation, "Server-Side Apply", "Clearing
// managedFields"). The patch must have the resourceVersion of the object that was Tracked,
// or else may remove what another client has applied since.
func Untracked() []metav1.ManagedFieldsEntry { return []metav1.ManagedFieldsEntry{{}} }
