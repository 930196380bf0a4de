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

// maxErrorOutput bounds what is kept of a command's standard error, in bytes.
const maxErrorOutput = 4096

// Exec runs a command in a container and returns its standard output, at most so many
// bytes, also when it fails. The error contains its standard error. Hold is called before more of
// the output is kept, and its error ends the command; nil: it isn't.
//
// Client-go's WebSocket executor would let an API server exhaust the memory: it dials without
// rest.Config.Dial (RoundTrip in transport/websocket/roundtripper.go sets no NetDialContext), so that
// nothing can meter its connection, and reads the headers of the response (http.ReadResponse in
// gorilla/websocket) and the exit status (io.ReadAll in tools/remotecommand/errorstream.go) of any
// size. The SPDY executor accepts frames of any size. This one bounds the bytes of the connection. It
// uses the WebSocket protocol of exec, version 4 or later.
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
	request, err := http.NewRequestWithContext(kube.WithAnswer(ctx, kube.Answer{Most: maxErrorOutput, Any: true, Switch: true}), http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := wrapped.RoundTrip(request)
	if err != nil {
		return nil, ended(ctx, err)
	}
	if up.connection == nil {
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, maxErrorOutput))
		return nil, errors.Join(fmt.Errorf("the API server answered %s: %s", response.Status, message(body)), err)
	}
	defer up.connection.Close()
	defer context.AfterFunc(ctx, func() { _ = up.connection.Close() })()
	out, err := read(up.connection, most)
	return out, ended(ctx, err)
}

// ended replaces the error of a connection with that of the context when its deadline has
// passed: the connection has the same deadline, and may fail before ctx is done.
func ended(ctx context.Context, err error) error {
	if at, limited := ctx.Deadline(); err != nil && limited && time.Until(at) <= 0 {
		<-ctx.Done()
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// read reads the messages of a command until it has ended.
func read(from *websocket.Conn, most int) ([]byte, error) {
	var out, errOut, state bytes.Buffer
	for {
		_, message, err := from.NextReader()
		if err != nil {
			switch {
			case state.Len() > 0:
				return out.Bytes(), outcome(state.Bytes(), errOut.String())
			case websocket.IsCloseError(err, websocket.CloseNormalClosure):
				return out.Bytes(), nil
			}
			return out.Bytes(), fmt.Errorf("read output: %w", err)
		}
		channel := make([]byte, 1)
		if _, err := io.ReadFull(message, channel); err != nil {
			continue // Each channel begins with an empty message.
		}
		to, bound := &out, most
		switch channel[0] {
		case channelOut:
		case channelErr:
			to, bound = &errOut, maxErrorOutput
		case channelState:
			to, bound = &state, maxErrorOutput
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
			to.Truncate(bound)
		}
	}
}

// outcome decodes the final status of a command.
func outcome(state []byte, errOut string) error {
	var status metav1.Status
	if err := json.Unmarshal(state, &status); err != nil {
		return errors.New("the API server sent no valid exit status of the command")
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	return errors.New(strings.TrimSuffix(status.Message+": "+errOut, ": "))
}

// message returns the message of an API server's error response.
func message(body []byte) string {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(body)
}

// upgrade is a RoundTripper for one request, which it upgrades to a WebSocket.
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
		// Headers, the overhead of TLS and frames, and standard error.
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

// metered fails reads of a connection after so many bytes.
type metered struct {
	net.Conn
	left int64
}

var errMetered = errors.New("the response exceeds the bound of the output")

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errMetered
	}
	n, err := m.Conn.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, err
}
