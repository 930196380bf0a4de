package measure

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fill adds to the status of a Node what a kubelet reports: images, and conditions.
func Fill(node *corev1.Node, images int) {
	for n := range images {
		image := fmt.Sprintf("registry.example.com/team-%d/some-service-with-a-name-%d", n%7, n)
		digest := fmt.Sprintf("%s@sha256:%064x", image, n)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{digest, image + ":v1.2.3"}, SizeBytes: int64(n) << 20})
	}
	for _, of := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: of, Status: "False", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			Reason: "KubeletHasNo" + string(of), Message: "kubelet has no " + string(of),
		})
	}
}
