package mcs

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// ConditionCluster is our own condition of exports. Its message is the name of the cluster,
// so that other clusters notice when they know it by another one: the name is in labels and
// DNS names, and decides conflicts.
const ConditionCluster = Prefix + "SourceCluster"

// maxMessage is the maximum length of the message of a condition.
const maxMessage = 2048

// Fault is why a Service can't be exported. The zero value is no fault.
type Fault struct {
	Reason  v1beta1.ServiceExportConditionReason
	Message string
}

// NoService returns the fault of an export without a Service.
func NoService() Fault {
	return Fault{v1beta1.ServiceExportReasonNoService, "there is no Service of this name"}
}

// InvalidService returns the fault of a Service that can't be exported.
func InvalidService(why string) Fault {
	return Fault{v1beta1.ServiceExportReasonInvalidServiceType, why}
}

// ExportConditions returns the conditions of an export of the local cluster, without times.
// pending is why the import isn't complete yet; empty: it is.
func ExportConditions(cluster string, x *Export, fault Fault, conflict *Conflict, pending string) []metav1.Condition {
	condition := func(t v1beta1.ServiceExportConditionType, is bool, reason v1beta1.ServiceExportConditionReason, message string) metav1.Condition {
		c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: string(reason), Message: cut(message)}
		if is {
			c.Status = metav1.ConditionTrue
		}
		return c
	}
	own := metav1.Condition{Type: ConditionCluster, Status: metav1.ConditionTrue, Reason: string(v1beta1.ServiceExportReasonExported), Message: cluster}
	if fault != (Fault{}) {
		return []metav1.Condition{
			condition(v1beta1.ServiceExportConditionValid, false, fault.Reason, fault.Message),
			condition(v1beta1.ServiceExportConditionReady, false, v1beta1.ServiceExportReasonFailed, fault.Message),
			condition(v1beta1.ServiceExportConditionConflict, false, v1beta1.ServiceExportReasonNoConflicts, ""),
			own,
		}
	}
	message := "other clusters may read it"
	if len(x.NotCopied) > 0 {
		message += "; labels or annotations that are not copied: " + strings.Join(x.NotCopied, ", ")
	}
	all := []metav1.Condition{
		condition(v1beta1.ServiceExportConditionValid, true, v1beta1.ServiceExportReasonValid, ""),
		condition(v1beta1.ServiceExportConditionReady, true, v1beta1.ServiceExportReasonExported, message),
		condition(v1beta1.ServiceExportConditionConflict, false, v1beta1.ServiceExportReasonNoConflicts, ""),
		own,
	}
	if pending != "" {
		all[1] = condition(v1beta1.ServiceExportConditionReady, false, v1beta1.ServiceExportReasonPending, pending)
	}
	if len(conflict.Reasons) > 0 {
		var text, others []string
		for _, r := range conflict.Reasons {
			text = append(text, string(r))
		}
		for _, d := range conflict.Differences {
			others = append(others, d.Cluster+": "+d.What)
		}
		all[2] = condition(v1beta1.ServiceExportConditionConflict, true, v1beta1.ServiceExportConditionReason(strings.Join(text, ",")),
			fmt.Sprintf("in this cluster its own export decides, in others that of %s; exports that differ: ", conflict.Oldest)+strings.Join(others, "; "))
	}
	return all
}

// ImportCondition returns the condition of an import. waiting is what it waits for; empty: it
// is ready. unsupported: the local cluster has none of its IP families. refused are its objects
// that the API server refuses, instead what others have instead of some fields.
func ImportCondition(waiting string, unsupported bool, refused, instead []string) metav1.Condition {
	c := metav1.Condition{Type: string(v1beta1.ServiceImportConditionReady), Status: metav1.ConditionTrue, Reason: string(v1beta1.ServiceImportReasonReady)}
	switch {
	case unsupported:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(v1beta1.ServiceImportReasonIPFamilyNotSupported), "this cluster has none of the IP families of the exported Services"
	case waiting != "" || len(refused) > 0:
		all := slices.DeleteFunc(append([]string{waiting}, refused...), func(text string) bool { return text == "" })
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(v1beta1.ServiceImportReasonPending), cut(strings.Join(all, ": "))
	case len(instead) > 0:
		c.Message = cut("the API server refuses some fields: " + strings.Join(instead, ", "))
	}
	return c
}

// SetConditions returns the conditions of an object with ours replaced, and whether they
// differ. Times change only with the status.
func SetConditions(have, want []metav1.Condition, generation int64) (all []metav1.Condition, changed bool) {
	all = append(all, have...)
	for _, c := range want {
		c.ObservedGeneration = generation
		if meta.SetStatusCondition(&all, c) {
			changed = true
		}
	}
	return all, changed
}

func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return fmt.Sprintf("%s...", strings.ToValidUTF8(text[:maxMessage-len("...")], ""))
}
