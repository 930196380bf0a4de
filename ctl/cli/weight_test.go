package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestWeight(t *testing.T) {
	const value, member = 1 << 10, 96
	for text, want := range map[string]int64{
		`{}`: value, `[{},{}]`: 4 * value, `[1,2,3]`: 3 * value, `{"a":1,"b":2}`: value + member,
		`{"a":[{"b":",[{"},"\"{"],"c":{}}`: 5*value + member, `1,2`: value, `]]`: 0,
	} {
		if got, err := Weight([]byte(text)); err != nil || got != want+int64(len(text)) {
			t.Errorf("%s: %d, want %d: %v", text, got, want+int64(len(text)), err)
		}
	}
	if _, err := Weight(bytes.Repeat([]byte("["), 5000)); !errors.Is(err, errTooDeep) {
		t.Errorf("5,000 lists in each other: %v", err)
	}
}

// TestLargeDiscoveryIsAccepted weighs discovery of 2,000 custom resources.
func TestLargeDiscoveryIsAccepted(t *testing.T) {
	resource := `{"resource":"widgets","responseKind":{"group":"","version":"","kind":"Widget"},"scope":"Namespaced","singularResource":"widget",` +
		`"verbs":["delete","deletecollection","get","list","patch","create","update","watch"],"shortNames":["w"],"categories":["crossplane","managed","aws"],` +
		`"subresources":[{"subresource":"status","responseKind":{"group":"","version":"","kind":"Widget"},"verbs":["get","patch","update"]}]}`
	list := func(one string, n int) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	group := `{"metadata":{"name":"a.example.org","creationTimestamp":null},"versions":[{"version":"v1","resources":` + list(resource, 20) + `,"freshness":"Current"}]}`
	if err := atMost([]byte(`{"kind":"APIGroupDiscoveryList","items":`+list(group, 100)+`}`), maxResponseDecoded); err != nil {
		t.Error(err)
	}
}

func TestObjectsThatGrowWhenDecodedAreRejected(t *testing.T) {
	if err := atMost([]byte(`[`+strings.Repeat(`{},`, 100_000)+`{}]`), maxDecoded); !errors.Is(err, errTooHeavy) {
		t.Errorf("a hundred thousand values: %v", err)
	}
	slice := `{"endpoints":[` + strings.TrimSuffix(strings.Repeat(
		`{"addresses":["10.4.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n","targetRef":{"kind":"Pod","name":"p","namespace":"n","uid":"u"},"zone":"a","hints":{"forZones":[{"name":"a"}]}},`, 1000), ",") + `]}`
	if err := atMost([]byte(slice), maxDecoded); err != nil {
		t.Errorf("an EndpointSlice of 1,000 endpoints: %v", err)
	}
}

func TestQuantitiesThatAreSlowToParseAreRejected(t *testing.T) {
	for text, hard := range map[string]bool{
		"": false, "110": false, "64Gi": false, "0.5": false, "1e3": false, "1e-3": false, "1E9": false, "100m": false, "1e2147483647": false,
		"1e-2147483647": true, "1E-9999": true, "-.5e-00001": true, "\t1e-99999\t": true,
		strings.Repeat("9", 2000): true, strings.Repeat("9", 2000) + "Mi": true,
		// As in an UID.
		"2c1b0e1e-1234-4a5b-9c6d-0123456789ab": false, "12345e-1234-4a5b": false, "1e-1234a": false,
	} {
		name := text[:min(len(text), 20)]
		if got := hardQuantity([]byte(text)); got != hard {
			t.Errorf("%q: %v, want %v", name, got, hard)
		}
		if err := atMost([]byte(`{"a":"`+text+`"}`), maxDecoded); errors.Is(err, errQuantity) != hard {
			t.Errorf("%q in JSON: %v", name, err)
		}
	}
	if err := atMost([]byte(`{"cpu":1e-2147483647}`), maxDecoded); !errors.Is(err, errQuantity) {
		t.Errorf("a bare number: %v", err)
	}
}
