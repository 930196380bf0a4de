package kube

import "strings"

// RefusedByAdmission reports whether an error's text is that of an admission controller: a policy, a
// webhook, a quota, or Pod Security. Kubernetes words most of them like missing rights.
func RefusedByAdmission(text string) bool {
	for _, part := range []string{"ValidatingAdmissionPolicy", "admission webhook", "denied the request", "denied request", "exceeded quota", "violates PodSecurity"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
