package cluster

import (
	"fmt"
	"net/http"
)

// maxErrorBody is how much is read of an answer that isn't a success.
const maxErrorBody = 64 << 10

// Media types of answers.
const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// answerTransport refuses redirects: net/http would follow them with the token
// to wherever the server says.
type answerTransport struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *answerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if code := response.StatusCode; code >= 300 && code < 400 {
		// Nobody reads it.
		_ = response.Body.Close()
		return nil, fmt.Errorf("the server answered %d %s: redirects are not followed", code, http.StatusText(code))
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *answerTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
