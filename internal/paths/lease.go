package paths

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycoordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
)

// The form of a report. deploy/wireguard/admission.yaml holds agents to it.
const (
	// Label is that of all reports, by which they are found.
	Label, LabelValue = "wireguard.semaphore.uw.io/path-report", "true"
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

// Lease returns a report as it is applied: by this process's pod, from when on it
// counts anew.
func (r *Report) Lease(namespace string, owner *applymetav1.OwnerReferenceApplyConfiguration, now time.Time) *applycoordinationv1.LeaseApplyConfiguration {
	return applycoordinationv1.Lease(Name(r.Node), namespace).
		WithLabels(map[string]string{Label: LabelValue}).
		WithAnnotations(map[string]string{Annotation: encode(r.Remotes)}).
		WithOwnerReferences(owner).
		WithSpec(applycoordinationv1.LeaseSpec().
			WithHolderIdentity(r.Node).
			WithLeaseDurationSeconds(int32(Expiry / time.Second)).
			WithRenewTime(metav1.NewMicroTime(now)))
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
