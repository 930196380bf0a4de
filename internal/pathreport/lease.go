package pathreport

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

// The form of a report. deploy/wireguard/admission.yaml enforces it.
const (
	// Label and LabelValue select reports.
	Label      = "wireguard.semaphore.uw.io/path-report"
	LabelValue = "true"
	// Annotation has the content of a report.
	Annotation = "wireguard.semaphore.uw.io/paths-down"

	namePrefix = "semaphore-paths-"
	// maxName is the maximum length of an object's name, a DNS subdomain. A longer one is
	// truncated, and ends with hashLength characters of a SHA-256 in hexadecimal.
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

// Lease returns the Lease of a report, owned by the agent's pod and renewed now.
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

// Patch returns the merge patch (RFC 7386) that updates an existing Lease to l.
func Patch(l *coordinationv1.Lease) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": l.Labels, "annotations": l.Annotations, "ownerReferences": l.OwnerReferences},
		"spec":     l.Spec,
	})
}

// Read returns the report in a Lease. With an error, the report has the valid parts: none
// if Node is empty.
func Read(l *coordinationv1.Lease) (Report, error) {
	node := l.Spec.HolderIdentity
	if node == nil || *node == "" || l.Name != Name(*node) {
		return Report{}, errors.New("name and holder are not of the same node")
	}
	remotes, err := decode(l.Annotations[Annotation])
	if err != nil {
		err = fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return Report{Node: *node, Remotes: remotes}, err
}
