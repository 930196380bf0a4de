// Package control is the protocol of the engine's control socket: JSON messages with
// descriptors over a Unix socket. The agent is a client of the engine, and the engine's
// two processes use the same protocol.
//
// A message is one packet of a SOCK_SEQPACKET socket (unix(7)): a JSON object of at
// most [MaxMessage] bytes, and its descriptors. Either side may send requests; a response
// has the ID of its request.
package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
)

// Dir is the directory in which wg(8) and wgctrl find the sockets of userspace devices.
const Dir = "/var/run/wireguard"

// Path is the engine's control socket. It doesn't end in .sock, because wg(8) takes such
// files for devices.
const Path = Dir + "/.semaphore-engine"

// Protocol is the protocol's version. Processes refuse other versions.
const Protocol = 1

// Requests of clients. Hello is the first one.
const (
	Hello  = "hello"  // Protocol; response: Protocol and Build
	List   = "list"   // response: Devices
	Serve  = "serve"  // Name, Index and the descriptor of an attached TUN
	Up     = "up"     // Name; response: Changed if a removed UAPI socket was restored
	Remove = "remove" // Name; response: Changed if the device existed
	End    = "end"    // end a temporary engine without devices; response: Changed if it ends
	// Handshake begins handshakes of the device Name with the peers Keys, at most [MaxKeys].
	// They retain their sessions until they have new ones.
	Handshake = "handshake"
)

// MaxKeys bounds the keys of a message.
const MaxKeys = 500

// Requests of an engine that continues the devices of the one that serves, in this order.
const (
	// Wait registers an engine that waits until this one ends: it then gets Ending.
	Wait = "wait"
	// Upgrade begins an upgrade, which lasts as long as the connection. The response has
	// Devices. Nothing can change devices during an upgrade.
	Upgrade = "upgrade"
	// State returns the state of the device Name: a file with the configuration, which is
	// the answer to a "get" request of UAPI, the TUN, and the UDP sockets, which are bound to
	// Port.
	State = "state"
	// Stop makes this engine read no further packets of the device Name, and then write to
	// the descriptor of a pipe.
	Stop = "stop"
	// Serving ends this engine: the sender serves. If the connection ends before, this engine
	// restores its devices.
	Serving = "serving"

	// EarlierUpgrade is what an engine of an earlier release begins with. It has no response
	// while this engine serves: that one serves when this one has ended, without its devices.
	EarlierUpgrade = "take"
)

// Notifications of the engine.
const (
	Died   = "died"   // to all clients: the device Name, of the link Index, has ended by itself
	Ending = "ending" // to an engine that waits: begin an upgrade, this engine ends
)

// Message is a request, a response, or a notification, which has no response.
type Message struct {
	ID uint64 `json:"id,omitempty"` // of a request and its response; 0: a notification
	Op string `json:"op,omitempty"` // empty: a response

	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"` // the system's error number in Error

	Protocol int      `json:"protocol,omitempty"`
	Build    string   `json:"build,omitempty"`
	Name     string   `json:"name,omitempty"`
	Index    int      `json:"index,omitempty"` // of the link
	Port     int      `json:"port,omitempty"`
	Changed  bool     `json:"changed,omitempty"`
	Devices  []Device `json:"devices,omitempty"`
	Keys     []string `json:"keys,omitempty"` // public keys of peers, in hexadecimal
	// Handshakes, in the response to Hello, is whether the engine supports Handshake.
	Handshakes bool `json:"handshakes,omitempty"`
}

// Device is a device that an engine serves.
type Device struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
}

// ErrorResponse returns the response that reports an error.
func ErrorResponse(err error) Message {
	m := Message{Error: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		m.Errno = int(errno)
	}
	return m
}

// remoteError is an error of a response.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

// Unwrap returns the system's error, nil if there is none.
func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// ErrProtocol is returned by Dial if the engine has another [Protocol].
var ErrProtocol = errors.New("the engine speaks another version of the protocol")

// Client is a connection to the engine. Its methods are safe for concurrent use.
type Client struct {
	conn *Conn
	// Build is the engine's version.
	Build string
	// Handshakes is whether the engine supports Handshake.
	Handshakes bool
}

// Dial connects to the engine.
func Dial(ctx context.Context) (*Client, error) { return Subscribe(ctx, func(Message) {}) }

// Subscribe is Dial with a callback for notifications. Calls run concurrently, in any order.
func Subscribe(ctx context.Context, notify func(Message)) (*Client, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, network, Path)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: NewConn(raw.(*net.UnixConn), func(m Message, files Files) (Message, Files) {
		files.Close()
		notify(m)
		return Message{}, nil
	})}
	c.conn.Start()
	answer, err := c.Ask(ctx, Message{Op: Hello, Protocol: Protocol})
	if answer.Protocol != 0 && answer.Protocol != Protocol {
		err = fmt.Errorf("%w: %d, not %d", ErrProtocol, answer.Protocol, Protocol)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Build, c.Handshakes = answer.Build, answer.Handshakes
	return c, nil
}

// Absent reports whether an error of Dial means that no engine runs.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// Ask sends a request, with descriptors that still belong to the caller, and returns the
// response. An error that the engine reports wraps the system's.
func (c *Client) Ask(ctx context.Context, m Message, files ...int) (Message, error) {
	answer, received, err := c.conn.Ask(ctx, m, files...)
	received.Close()
	return answer, err
}

// AskFiles is Ask for responses with descriptors, which belong to the caller.
func (c *Client) AskFiles(ctx context.Context, m Message) (Message, Files, error) {
	return c.conn.Ask(ctx, m)
}

// Done is closed when the connection has ended, because the engine ends or is replaced.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Close closes the connection. The engine continues to serve its devices.
func (c *Client) Close() { c.conn.Close() }
