package reach

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// TestMapped checks the addresses by which pods of other clusters know a pod.
func TestMapped(t *testing.T) {
	t.Parallel()
	var m config.SubnetMap
	if err := m.Decode("10.2.0.0/16=100.77.0.0/16,fd00:2::/48=fd00:77::/48"); err != nil {
		t.Fatal(err)
	}
	request, err := json.Marshal(Request{Map: m})
	var got Request
	if err != nil || json.Unmarshal(request, &got) != nil || fmt.Sprint(got.Map) != fmt.Sprint(m) {
		t.Errorf("the request %s is %+v", request, got)
	}
	for own, known := range map[string]string{"10.2.1.7": "100.77.1.7", "fd00:2::7": "fd00:77::7", "10.3.1.7": "10.3.1.7"} {
		if got := virtual(m, own); got != known {
			t.Errorf("pods of other clusters know %s as %s, not %s", own, known, got)
		}
	}
}
