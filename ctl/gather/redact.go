package gather

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const redacted = "[REDACTED]"

//nolint:gochecknoglobals // Compiled once.
var (
	// token matches a JSON Web Token, such as those of service accounts.
	token = regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]{8,}(\.[\w-]*)?`)
	// key matches a private key in PEM, also in JSON, or one that is cut off.
	key = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`)
	// user matches the user of a URL, bearer a header, named a value by its name.
	user   = regexp.MustCompile(`://[^/\s"]+@`)
	bearer = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}`)
	named  = regexp.MustCompile(`(?i)(password|passwd|secret|token|private[_-]?key|preshared[_-]?key|api[_-]?key)(\\?"?\s*[:=]\s*\\?"?)(?:[^\s",}\\]|\\[^"\s]){6,}`)
	// curve matches 32 bytes in base64: a private key of WireGuard, or a public one.
	curve = regexp.MustCompile(`(^|[^\w+/=])([\w+/]{43}=)`)
)

// redact replaces secrets in a text. Public are the public keys of nodes, which look like private ones.
func redact(text string, public map[string]bool) string {
	text = key.ReplaceAllString(text, redacted)
	text = token.ReplaceAllString(text, redacted)
	text = user.ReplaceAllString(text, "://"+redacted+"@")
	text = bearer.ReplaceAllString(text, "$1 "+redacted)
	text = named.ReplaceAllString(text, "$1$2"+redacted)
	return curve.ReplaceAllStringFunc(text, func(match string) string {
		at := len(match) - 44
		if public[match[at:]] {
			return match
		}
		return match[:at] + redacted
	})
}

// trim removes bookkeeping from an object, and values of environment variables that aren't ours.
func trim(o *unstructured.Unstructured) {
	unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	hideValues(o.Object)
}

// hideValues hides the values of all lists that are called env, at any depth.
func hideValues(value any) {
	switch v := value.(type) {
	case map[string]any:
		if variables, is := v["env"].([]any); is {
			for _, one := range variables {
				variable, is := one.(map[string]any)
				if name, _ := variable["name"].(string); is && variable["value"] != nil && !strings.HasPrefix(name, "SEMAPHORE_") {
					variable["value"] = redacted
				}
			}
		}
		for _, one := range v {
			hideValues(one)
		}
	case []any:
		for _, one := range v {
			hideValues(one)
		}
	}
}
