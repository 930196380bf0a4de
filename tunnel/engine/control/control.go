// Package control is how a program talks to the engine: messages over a Unix
// socket, with descriptors beside them. The agent is a client of the engine, and
// the engine's two processes talk to each other in the same way.
//
// A message is one packet of a SOCK_SEQPACKET socket (unix(7)): a JSON object of at
// most [MaxMessage] bytes, and the descriptors that go with it. Either side may
// ask; an answer has the number of its question.
package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
)

// Dir is where wg(8) and wgctrl look for userspace devices.
const Dir = "/var/run/wireguard"

// Path is the engine's own socket. It doesn't end in .sock, by which wg(8) knows
// devices.
const Path = Dir + "/.semaphore-engine"

// Protocol is the version of what is said. Processes of different versions don't
// understand each other.
const Protocol = 1

// What a client asks the engine for. Hello comes first.
const (
	Hello  = "hello"  // Protocol; answered with Protocol and Build
	List   = "list"   // answered with Devices
	Serve  = "serve"  // Name, Index and the descriptor of an attached TUN
	Up     = "up"     // Name; also brings back a removed UAPI socket, told by Changed
	Remove = "remove" // Name; a device that isn't there is removed
	End    = "end"    // end, if it was started by hand and serves nothing
	// Handshake has the device Name begin handshakes with the peers Keys, at most
	// [MaxKeys]. They keep the sessions that they have until the new ones are there.
	Handshake = "handshake"
)

// MaxKeys is how many keys fit a message.
const MaxKeys = 500

// What an engine that starts, or is to go on, asks another one for.
const (
	// Take begins a hand-over, which lasts as long as the connection. It is answered
	// with Devices, and nobody else may change these meanwhile.
	Take = "take"
	// Give has the device Name handed over. It is answered with descriptors: a file
	// with the configuration, an end of a pair for the hand-over, the TUN, and the UDP
	// sockets, which are bound to Port.
	Give = "give"
	// Took says that the device Name has been taken, and without a name, that all
	// have: the other engine stands by from then on.
	Took = "took"
	// Standby says that the other engine stands by.
	Standby = "standby"
)

// What the engine tells.
const (
	Died     = "died"     // all clients: the device Name, of the link Index, has ended by itself
	TakeOver = "takeover" // who stands by: this engine ends, take its devices
)

// Message is a question, an answer, or news that nobody answers.
type Message struct {
	ID uint64 `json:"id,omitempty"` // of a question and its answer; 0: no answer is wanted
	Op string `json:"op,omitempty"` // empty: an answer

	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"` // the system's, in Error

	Protocol int      `json:"protocol,omitempty"`
	Build    string   `json:"build,omitempty"`
	Name     string   `json:"name,omitempty"`
	Index    int      `json:"index,omitempty"` // of the link
	Port     int      `json:"port,omitempty"`
	Changed  bool     `json:"changed,omitempty"`
	Devices  []Device `json:"devices,omitempty"`
	Keys     []string `json:"keys,omitempty"` // public keys of peers, in hexadecimal
	// Handshakes is answered to Hello by an engine that knows Handshake.
	Handshakes bool `json:"handshakes,omitempty"`
}

// Device is one that an engine serves.
type Device struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
}

// Failure is the answer that says so.
func Failure(err error) Message {
	m := Message{Error: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		m.Errno = int(errno)
	}
	return m
}

// failure is an error that the other side reports.
type failure struct {
	text  string
	errno syscall.Errno
}

func (f *failure) Error() string { return f.text }

// Unwrap returns the system's error, if there is one in it.
func (f *failure) Unwrap() error {
	if f.errno == 0 {
		return nil
	}
	return f.errno
}

// ErrProtocol is returned by Dial about an engine that speaks another version.
var ErrProtocol = errors.New("the engine speaks another version of the protocol")

// Client is a connection to the engine. Its methods may be called by several
// goroutines at once.
type Client struct {
	conn *Conn
	// Build is which build the engine is.
	Build string
	// Handshakes tells whether the engine knows Handshake.
	Handshakes bool
}

// Dial connects to the engine.
func Dial(ctx context.Context) (*Client, error) { return DialNews(ctx, func(Message) {}) }

// DialNews is Dial for who wants to know what the engine tells from then on: for each, news
// is called on a goroutine of its own, in any order.
func DialNews(ctx context.Context, news func(Message)) (*Client, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, network, Path)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: NewConn(raw.(*net.UnixConn), func(m Message, files Files) (Message, Files) {
		files.Close()
		news(m)
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

// Absent reports whether an error of Dial says that no engine runs.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// Ask sends a question, with descriptors that stay the caller's, and returns the
// answer. An error that the engine reports wraps the system's.
func (c *Client) Ask(ctx context.Context, m Message, files ...int) (Message, error) {
	answer, received, err := c.conn.Ask(ctx, m, files...)
	received.Close()
	return answer, err
}

// AskFiles is Ask for answers with descriptors, which become the caller's.
func (c *Client) AskFiles(ctx context.Context, m Message) (Message, Files, error) {
	return c.conn.Ask(ctx, m)
}

// Done is closed when the connection has ended: the engine has, or another one
// took its place.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Close ends the connection. What the engine serves goes on.
func (c *Client) Close() { c.conn.Close() }
