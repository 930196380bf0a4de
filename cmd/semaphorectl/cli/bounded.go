package cli

import (
	"fmt"
	"io"
	"net/http"
)

// mostAnswered is the most bytes of one answer of an API server. Of 10,000 nodes, which
// is the longest list that is read, there are some 150 MB.
const mostAnswered = 256 << 20

// bounded cuts off answers that are longer, with an error.
type bounded struct {
	next http.RoundTripper
	most int64
}

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	// The body of a connection that was taken over is written to as well; what comes
	// over it is bounded by who reads it.
	if err == nil && response.StatusCode != http.StatusSwitchingProtocols {
		response.Body = &boundedBody{response.Body, b.most, b.most}
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

type boundedBody struct {
	io.ReadCloser
	most, left int64
}

// Read returns an error once there is more than may be.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", b.most)
	}
	// One more, to tell an answer that is as long as may be from a longer one.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return n - 1, fmt.Errorf("the answer has more than %d bytes", b.most)
	}
	return n, err
}
