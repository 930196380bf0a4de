package kube

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTracked(t *testing.T) {
	update := func(manager string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate}
	}
	applied := metav1.ManagedFieldsEntry{Manager: "us", Operation: metav1.ManagedFieldsOperationApply}
	for name, c := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   bool
	}{
		"not at all":             {nil, false},
		"ours":                   {[]metav1.ManagedFieldsEntry{update("us")}, true},
		"ours, of two versions":  {[]metav1.ManagedFieldsEntry{update("us"), update("us")}, true},
		"ours and another one's": {[]metav1.ManagedFieldsEntry{update("us"), update("them")}, false},
		"another manager's":      {[]metav1.ManagedFieldsEntry{update("them")}, false},
		"applied in our name":    {[]metav1.ManagedFieldsEntry{applied}, false},
		"being forgotten":        {Untracked(), false},
	} {
		if got := Tracked(&metav1.ObjectMeta{ManagedFields: c.fields}, "us"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	text, err := json.Marshal(Untracked())
	if err != nil || string(text) != "[{}]" {
		t.Errorf("%s, %v", text, err)
	}
}
