package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Traffic counts packets of one kind. A packet is what the sender's kernel gave
// to its link: with segmentation offload that is up to 64 KB.
type Traffic struct {
	Packets, Bytes int64
}

// Counts counts what machines have sent onto the underlay, by kind.
type Counts struct {
	// WireGuard counts WireGuard messages.
	WireGuard Traffic
	// Plaintext counts packets from or to a pod that ought to have been in a
	// tunnel: each that isn't Local, and each with a virtual address.
	Plaintext Traffic
	// Local counts packets between pods, or nodes or the API server and pods, of one cluster:
	// those go over plain routes in a testbed.
	Local Traffic
	// API counts packets from and to API servers.
	API Traffic
	// Other counts the rest: address resolution and the like.
	Other Traffic
	// Dropped counts packets that the capture missed. When it isn't zero, the
	// others are lower bounds and a proof of absence is none.
	Dropped int64
}

// Sub returns what came on top of earlier.
func (c Counts) Sub(earlier Counts) Counts {
	sub := func(a, b Traffic) Traffic { return Traffic{a.Packets - b.Packets, a.Bytes - b.Bytes} }
	return Counts{
		WireGuard: sub(c.WireGuard, earlier.WireGuard),
		Plaintext: sub(c.Plaintext, earlier.Plaintext),
		Local:     sub(c.Local, earlier.Local),
		API:       sub(c.API, earlier.API),
		Other:     sub(c.Other, earlier.Other),
		Dropped:   c.Dropped - earlier.Dropped,
	}
}

func (c Counts) String() string {
	return fmt.Sprintf("%d WireGuard, %d plaintext, %d local, %d API, %d other, %d missed",
		c.WireGuard.Packets, c.Plaintext.Packets, c.Local.Packets, c.API.Packets, c.Other.Packets, c.Dropped)
}

// Capture watches the underlay. It sees each packet once, where its sender's
// link meets the bridge, whether or not it gets further.
type Capture struct {
	u        *underlay
	file     *os.File
	classify classifier
	start    time.Time
	done     chan struct{}

	mu      sync.Mutex
	counts  Counts
	samples []string
	err     error
	marker  uint64                   // the last that was sent
	waiting map[uint64]chan struct{} // by marker
}

// maxSamples bounds how many plaintext packets are described.
const maxSamples = 20

// snapLength is how much of a packet is looked at: all headers, with room for
// IPv6 and options.
const snapLength = 128

// Capture starts watching. Clusters and nodes that come later are not known to
// it. Close, of the capture or the testbed, ends it.
func (tb *Testbed) Capture() (*Capture, error) {
	c := &Capture{
		u:        tb.underlay,
		classify: newClassifier(tb.Clusters()),
		start:    time.Now(),
		done:     make(chan struct{}),
		waiting:  make(map[uint64]chan struct{}),
	}
	var fd int
	err := tb.underlay.space.Do(func() (err error) {
		fd, err = openPacketSocket()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture on the underlay: %w", err)
	}
	// Non-blocking, so that Close ends a pending read.
	c.file = os.NewFile(uintptr(fd), "capture")
	go c.read()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.captures = append(tb.captures, c)
	return c, nil
}

// openPacketSocket opens a packet socket (packet(7)) on all links of the calling
// thread's namespace.
func openPacketSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	fail := func(what string, err error) (int, error) {
		return 0, errors.Join(fmt.Errorf("%s: %w", what, err), unix.Close(fd))
	}
	// Bound to a protocol only at the end, when everything else is set.
	program, err := bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: snapLength}})
	if err != nil {
		return fail("assemble the filter", err)
	}
	filter := make([]unix.SockFilter, len(program))
	for i, instruction := range program {
		filter[i] = unix.SockFilter{Code: instruction.Op, Jt: instruction.Jt, Jf: instruction.Jf, K: instruction.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fail("attach the filter", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20); err != nil {
		return fail("enlarge the buffer", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)}); err != nil {
		return fail("bind", err)
	}
	return fd, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// read counts packets until the socket is closed.
func (c *Capture) read() {
	defer close(c.done)
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.fail(err)
		return
	}
	buffer := make([]byte, snapLength)
	for {
		var length int
		var from unix.Sockaddr
		var receive error
		err := raw.Read(func(fd uintptr) bool {
			// With MSG_TRUNC the length is that of the whole packet.
			length, from, receive = unix.Recvfrom(int(fd), buffer, unix.MSG_TRUNC)
			return !errors.Is(receive, unix.EAGAIN)
		})
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err := errors.Join(err, receive); err != nil && !errors.Is(err, unix.EINTR) {
			c.fail(err)
			return
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		c.count(buffer[:min(length, len(buffer))], length, link)
	}
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = fmt.Errorf("capture on the underlay: %w", err)
}

func (c *Capture) count(frame []byte, length int, link *unix.SockaddrLinklayer) {
	p, ok := parse(frame)
	if p.ether == etherMarker && link.Ifindex == c.u.bridge {
		c.marked(frame)
		return
	}
	// Frames are seen again as they leave through another port, and those for
	// the bridge itself once more as received by it.
	if link.Pkttype == unix.PACKET_OUTGOING || link.Ifindex == c.u.bridge {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	traffic := &c.counts.Other
	if ok {
		traffic = c.classify.of(p, &c.counts)
	}
	traffic.Packets++
	traffic.Bytes += int64(length)
	if traffic == &c.counts.Plaintext && len(c.samples) < maxSamples {
		c.samples = append(c.samples, fmt.Sprintf("after %s from %s: %s, %d bytes",
			time.Since(c.start).Round(time.Millisecond), c.u.machineAt(link.Ifindex), p, length))
	}
}

// Counts returns what has been sent until now: all packets that were on the
// underlay before the call are in it. ctx bounds the wait for those.
func (c *Capture) Counts(ctx context.Context) (Counts, error) {
	if err := c.flush(ctx); err != nil {
		return Counts{}, err
	}
	var dropped int64
	raw, err := c.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			var stats *unix.TpacketStats
			// Reading them resets them.
			if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				dropped = int64(stats.Drops)
			}
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Dropped += dropped
	return c.counts, errors.Join(err, c.err)
}

// flush sends a marker and waits until it comes back through the socket's
// queue: whatever was sent before has been counted then.
func (c *Capture) flush(ctx context.Context) error {
	c.mu.Lock()
	c.marker++
	marker, seen := c.marker, make(chan struct{})
	c.waiting[marker] = seen
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, marker)
	}()
	frame := make([]byte, etherHeader, 64)
	binary.BigEndian.PutUint16(frame[12:], etherMarker)
	frame = binary.BigEndian.AppendUint64(frame, marker)
	frame = frame[:cap(frame)]
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		// Sent again, as a full queue drops markers too.
		if err := c.send(frame); err != nil {
			return err
		}
		select {
		case <-seen:
			return nil
		case <-c.done:
			return c.ended()
		case <-ctx.Done():
			return fmt.Errorf("flush the capture: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// ended returns why the capture has ended.
func (c *Capture) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(errors.New("the capture has ended"), c.err)
}

func (c *Capture) send(frame []byte) error {
	return c.u.space.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("flush the capture: %w", err)
		}
		to := &unix.SockaddrLinklayer{Protocol: networkOrder(etherMarker), Ifindex: c.u.bridge, Halen: 6}
		return errors.Join(unix.Sendto(fd, frame, 0, to), unix.Close(fd))
	})
}

func (c *Capture) marked(frame []byte) {
	if len(frame) < etherHeader+8 {
		return
	}
	marker := binary.BigEndian.Uint64(frame[etherHeader:])
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen, ok := c.waiting[marker]; ok {
		delete(c.waiting, marker)
		close(seen)
	}
}

// Plaintext describes the first plaintext packets: when, from which machine,
// from where to where.
func (c *Capture) Plaintext() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.samples)
}

// Close ends the capture. It may be called twice.
func (c *Capture) Close() error {
	err := c.file.Close()
	<-c.done
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// classifier classifies packets by the addresses of the clusters.
type classifier struct {
	clusters []*Cluster
	nodes    map[netip.Addr]*Cluster
	ports    map[uint16]*Cluster // of nodes, by the number in their hardware address
	virtual  []netip.Prefix
	apis     map[netip.Addr]*Cluster
}

func newClassifier(clusters []*Cluster) classifier {
	c := classifier{clusters: clusters, nodes: make(map[netip.Addr]*Cluster), ports: make(map[uint16]*Cluster), apis: make(map[netip.Addr]*Cluster)}
	for _, cluster := range clusters {
		for _, n := range cluster.Nodes() {
			c.ports[uint16(n.tb.underlay.portOf(n.Name).id)] = cluster
			for _, address := range n.Addresses() {
				c.nodes[address] = cluster
			}
		}
		for i, subnet := range cluster.VirtualSubnets {
			if subnet != cluster.PodSubnets[i] {
				c.virtual = append(c.virtual, subnet)
			}
		}
		for _, address := range cluster.plane.addresses {
			c.apis[address] = cluster
		}
	}
	return c
}

// of picks the counter of a packet.
func (c classifier) of(p packet, counts *Counts) *Traffic {
	src, dst := p.src.Addr(), p.dst.Addr()
	sender, receiver := c.ports[p.sender], c.ports[p.receiver]
	if sender == nil {
		sender = c.apis[src] // it connects to pods of its cluster for its clients
	}
	// Pods of two clusters may have one address.
	from, to := c.podOf(src, sender), c.podOf(dst, sender)
	within := sender == nil || receiver == nil || sender == receiver
	switch {
	case c.isVirtual(src) || c.isVirtual(dst):
		return &counts.Plaintext
	case within && from != nil && (from == to || from == c.nodes[dst] || from == c.apis[dst]):
		return &counts.Local
	case within && to != nil && (to == c.nodes[src] || to == c.apis[src]):
		return &counts.Local
	case to == nil && c.nodes[dst] != nil && p.wireguard():
		// Also from a pod address: after the loss of its own address, a node's kernel uses
		// another one, such as that of the pods' bridge.
		return &counts.WireGuard
	case from != nil || to != nil:
		return &counts.Plaintext
	case p.wireguard():
		return &counts.WireGuard
	case c.apis[src] != nil || c.apis[dst] != nil:
		return &counts.API
	default:
		return &counts.Other
	}
}

// podOf returns the cluster whose pod subnets hold the address, sender if it is one of several,
// unless it is that of a node or an API server inside one.
func (c classifier) podOf(address netip.Addr, sender *Cluster) (of *Cluster) {
	if c.nodes[address] != nil || c.apis[address] != nil {
		return nil
	}
	for _, cluster := range c.clusters {
		if (of == nil || cluster == sender) && contains(cluster.PodSubnets, address) {
			of = cluster
		}
	}
	return of
}

// isVirtual reports whether a packet may have the address only inside of a tunnel.
func (c classifier) isVirtual(address netip.Addr) bool { return contains(c.virtual, address) }

func contains(subnets []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(address) })
}
