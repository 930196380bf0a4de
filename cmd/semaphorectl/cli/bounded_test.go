package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswersAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", len(r.URL.Query().Get("n"))))
	}))
	defer server.Close()
	client := http.Client{Transport: &bounded{http.DefaultTransport, 1000}}
	for n, ok := range map[int]bool{0: true, 999: true, 1000: true, 1001: false, 4000: false} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/?n="+strings.Repeat("y", n), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if (err == nil) != ok || len(body) != min(n, 1000) {
			t.Errorf("of %d bytes %d are read: %v", n, len(body), err)
		}
	}
}
