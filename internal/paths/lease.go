package paths

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The form of a report. deploy/wireguard/admission.yaml holds agents to it.
const (
	// Label is that of all reports, by which they are found.
	Label = "wireguard.semaphore.uw.io/path-report"
	// LabelValue is the label's.
	LabelValue = "true"
	// Annotation has what a report says.
	Annotation = "wireguard.semaphore.uw.io/paths-down"

	namePrefix = "semaphore-paths-"
	// maxName is what the name of an object may have, a DNS subdomain; hashLength is
	// how much of a SHA-256, in hexadecimal, makes a longer one fit.
	maxName, hashLength = 253, 32
)

// Name returns the name of the report of a node.
func Name(node string) string {
	full := namePrefix + node
	if len(full) <= maxName {
		return full
	}
	sum := sha256.Sum256([]byte(node))
	return full[:maxName-hashLength-1] + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// Lease returns a report as it is written: by the pod that owns it, from when on it
// counts anew.
func (r *Report) Lease(namespace string, owner metav1.OwnerReference, now time.Time) *coordinationv1.Lease {
	node, seconds, renewed := r.Node, int32(Expiry/time.Second), metav1.NewMicroTime(now)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: Name(r.Node),
			Labels:      map[string]string{Label: LabelValue},
			Annotations: map[string]string{Annotation: encode(r.Remotes)}, OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
}

// Patch returns the merge patch (RFC 7386) that makes such a Lease of one that there is.
func Patch(l *coordinationv1.Lease) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": l.Labels, "annotations": l.Annotations, "ownerReferences": l.OwnerReferences},
		"spec":     l.Spec,
	})
}

// Read returns the report that a Lease is. An error says what of it doesn't count;
// without a node nothing does.
func Read(l *coordinationv1.Lease) (Report, error) {
	node := l.Spec.HolderIdentity
	if node == nil || *node == "" || l.Name != Name(*node) {
		return Report{}, errors.New("its name and its holder aren't of one node")
	}
	remotes, err := decode(l.Annotations[Annotation])
	if err != nil {
		err = fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return Report{Node: *node, Remotes: remotes}, err
}
