package kube

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Tracked reports whether an API server keeps who set which field of an object
// (metadata.managedFields), and that was nobody but manager, by updates and patches.
//
// To keep that up takes an API server longer than all else that it does for a small
// patch, and is of use to those who share an object. It ends with the first patch that
// has [Untracked] there, and begins again with the first server-side apply of anybody:
// see NewSkipNonAppliedManager in k8s.io/apimachinery/pkg/util/managedfields.
func Tracked(object metav1.Object, manager string) bool {
	fields := object.GetManagedFields()
	for i := range fields {
		if f := &fields[i]; f.Manager != manager || f.Operation != metav1.ManagedFieldsOperationUpdate {
			return false
		}
	}
	return len(fields) > 0
}

// Untracked is what metadata.managedFields of a patch must be for an API server to
// forget who set which field: a list with one empty entry (Kubernetes documentation,
// "Server-Side Apply", "Clearing managedFields"). Who patches so must name the version
// of the object that was Tracked, or else may take away what somebody else applied.
func Untracked() []metav1.ManagedFieldsEntry { return []metav1.ManagedFieldsEntry{{}} }
