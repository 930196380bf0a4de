package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Channels of the protocols below: the first byte of a message
// (k8s.io/apimachinery/pkg/util/remotecommand).
const (
	channelOut   = 1
	channelErr   = 2
	channelState = 3
)

// mostSaid is the most bytes of what is kept of a command's errors.
const mostSaid = 4096

// Exec runs a command in a container and returns what it prints, at most so many bytes,
// also when it ends with an error, which has what it prints to standard error.
//
// Client-go's executors connect by themselves, and read headers, and with SPDY frames, of
// any size. This one counts all that comes over the connection. API servers take exec as a
// WebSocket, of which the output needs nothing newer than version 4 of the protocol.
func (c *Cluster) Exec(ctx context.Context, namespace, pod, container string, command []string, most int) ([]byte, error) {
	address := c.Client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	config, err := c.Config.TransportConfig()
	if err != nil {
		return nil, err
	}
	up := &upgrade{proxy: config.Proxy, dial: (&net.Dialer{}).DialContext, most: int64(most)}
	if config.DialHolder != nil {
		up.dial = config.DialHolder.Dial
	}
	if up.dialer.TLSClientConfig, err = transport.TLSConfigFor(config); err != nil {
		return nil, err
	}
	wrapped, err := transport.HTTPWrappersForConfig(config, up)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(kube.WithStream(ctx), http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := wrapped.RoundTrip(request)
	if err != nil {
		return nil, ended(ctx, err)
	}
	if up.connection == nil {
		defer response.Body.Close()
		said, err := io.ReadAll(io.LimitReader(response.Body, mostSaid))
		return nil, errors.Join(fmt.Errorf("the API server answered %s: %s", response.Status, message(said)), err)
	}
	defer up.connection.Close()
	defer context.AfterFunc(ctx, func() { _ = up.connection.Close() })()
	out, err := read(up.connection, most)
	return out, ended(ctx, err)
}

// ended prefers that the time is over to what came of that: the connection has the same
// deadline, and may notice it before ctx does.
func ended(ctx context.Context, err error) error {
	if at, limited := ctx.Deadline(); err != nil && limited && time.Until(at) <= 0 {
		<-ctx.Done()
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// read takes the messages of a command until it has ended.
func read(from *websocket.Conn, most int) ([]byte, error) {
	var out, said, state bytes.Buffer
	for {
		_, message, err := from.NextReader()
		if err != nil {
			switch {
			case state.Len() > 0:
				return out.Bytes(), outcome(state.Bytes(), said.String())
			case websocket.IsCloseError(err, websocket.CloseNormalClosure):
				return out.Bytes(), nil
			}
			return out.Bytes(), fmt.Errorf("read output: %w", err)
		}
		channel := make([]byte, 1)
		if _, err := io.ReadFull(message, channel); err != nil {
			continue // An empty message says that there is a connection.
		}
		to, bound := &out, most
		switch channel[0] {
		case channelOut:
		case channelErr:
			to, bound = &said, mostSaid
		case channelState:
			to, bound = &state, mostSaid
		default:
			continue
		}
		_, err = io.Copy(to, io.LimitReader(message, int64(bound-to.Len())+1))
		if err != nil {
			return out.Bytes(), fmt.Errorf("read output: %w", err)
		}
		if to.Len() > bound {
			if to == &out {
				return nil, fmt.Errorf("output of more than %d bytes", most)
			}
			to.Truncate(bound) // The rest is left out.
		}
	}
}

// outcome is how a command has ended.
func outcome(state []byte, said string) error {
	var status metav1.Status
	if err := json.Unmarshal(state, &status); err != nil {
		return errors.New("the API server doesn't say how the command has ended")
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	return errors.New(strings.TrimSuffix(status.Message+": "+said, ": "))
}

// message is what an API server says of an error.
func message(body []byte) string {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(body)
}

// upgrade makes one request, which becomes a WebSocket.
type upgrade struct {
	dialer     websocket.Dialer
	proxy      func(*http.Request) (*url.URL, error)
	dial       func(ctx context.Context, network, address string) (net.Conn, error)
	most       int64 // bytes of output
	connection *websocket.Conn
}

// RoundTrip implements http.RoundTripper.
func (u *upgrade) RoundTrip(request *http.Request) (*http.Response, error) {
	u.dialer.Proxy = u.proxy
	if u.dialer.Proxy == nil {
		u.dialer.Proxy = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	u.dialer.Subprotocols = []string{"v5.channel.k8s.io", "v4.channel.k8s.io"}
	u.dialer.NetDialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := u.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		// The headers, what TLS and frames add, and what is left out.
		return &metered{Conn: connection, left: u.most + u.most/8 + 1<<20}, nil
	}
	address := *request.URL
	address.Scheme = strings.Replace(address.Scheme, "http", "ws", 1)
	connection, response, err := u.dialer.DialContext(request.Context(), address.String(), request.Header)
	if err != nil {
		if errors.Is(err, websocket.ErrBadHandshake) && response != nil && response.StatusCode != http.StatusSwitchingProtocols {
			return response, nil
		}
		return nil, err
	}
	u.connection = connection
	return response, nil
}

// metered ends a connection over which more comes than may.
type metered struct {
	net.Conn
	left int64
}

var errMetered = errors.New("more came over the connection than the output may have")

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errMetered
	}
	n, err := m.Conn.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, err
}
