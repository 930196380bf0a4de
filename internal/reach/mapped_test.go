package reach

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// TestMapped proves a response by the address at which pods of other clusters reach the pod.
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
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(own), Port: MeetPort}), http.MethodGet, "/seen", http.NoBody)
		r.Header.Set(nonceHeader, "n")
		w := httptest.NewRecorder()
		ours.answer(w, r, m, "x")
		if !ours.proven(w.Header(), "/seen", "n", known, "x\n") {
			t.Errorf("the response of %s isn't that of %s", own, known)
		}
	}
}
