package tunnel

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Prober sends probes to the peers of a device, which their kernels answer. The method
// depends on the permissions of this process:
//
//	net.ipv4.ping_group_range    probe                 answer
//	includes one of our groups   ICMPv6 echo request   echo reply, of the same size
//	doesn't                      UDP to discardPort    port unreachable, of a kernel that
//	                                                   sends 4 a second to one host
//
// Neither needs CAP_NET_RAW. A Prober isn't safe for concurrent use.
type Prober struct {
	fd    int
	echo  bool
	link  link // when opened
	self  netip.Addr
	token [8]byte // distinguishes our answers from other processes'

	small, large []byte
	in           []byte
	oob          []byte
}

const (
	// discardPort is 9 of RFC 863, which is rarely open and discards packets if it is.
	discardPort = 9

	echoRequest, echoReply = 128, 129 // RFC 4443, section 4
	icmpHeader             = 8        // as long as UDP's
	ipv6Header             = 40
)

// The byte after the token of a probe. The time of sending follows.
const (
	sizeSmall byte = iota
	sizeLarge
)

// stampSize is the size of the time of sending: the lowest 32 bits of this host's clock in
// microseconds, which wrap after 71 minutes.
const stampSize = 4

// maxRTT is the longest plausible round trip time: longer ones come from a clock that was
// set.
const maxRTT = 10 * time.Second

// Answer is the answer of a peer to a probe.
type Answer struct {
	From  netip.Addr
	Large bool // to a full-size probe
	// RTT is the round trip time by the kernel's timestamp; 0: not known.
	RTT time.Duration
}

// ErrNoProbes means that no probes can be sent: IPv6 is disabled on the device, so that it
// can't have the address for probes, or a route or firewall rule of the host blocks them.
var ErrNoProbes = errors.New("the device can't send probes over IPv6")

// Prober assigns the device its link-local address, and opens a prober. That works as long
// as the device has the same index and MTU, see [Prober.Refresh].
func (d *Device) Prober() (*Prober, error) {
	l, err := findLink(d.cfg.Name)
	if err != nil {
		return nil, err
	}
	if index, known := d.Index(); !known || index != l.index {
		return nil, fmt.Errorf("probe peers of device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	key := d.PublicKey()
	if key.IsZero() {
		return nil, fmt.Errorf("probe peers of device %s: it has no key yet: %w", d.cfg.Name, os.ErrNotExist)
	}
	p, err := newProber(l, LinkLocal(key))
	if err != nil {
		return nil, fmt.Errorf("probe peers of device %s: %w", d.cfg.Name, err)
	}
	return p, nil
}

func newProber(l link, self netip.Addr) (*Prober, error) {
	if err := l.assign(self); err != nil {
		return nil, err
	}
	p := &Prober{link: l, self: self, in: make([]byte, 128), oob: make([]byte, 256)}
	_, _ = rand.Read(p.token[:])
	if err := p.open(); err != nil {
		return nil, err
	}
	least := len(p.token) + 1 + stampSize
	p.small = p.payload(sizeSmall, least)
	p.large = p.payload(sizeLarge, max(l.mtu-ipv6Header-icmpHeader, least))
	return p, nil
}

// Refresh assigns the device its link-local address again, which a link loses when it goes
// down. It returns an error when the prober no longer works: [os.ErrNotExist] when the
// device doesn't exist or has another index or MTU, [ErrNoProbes] when it can't have the
// address.
func (p *Prober) Refresh() error {
	l, err := findLink(p.link.name)
	if err != nil {
		return fmt.Errorf("probe peers: %w", err)
	}
	if l.index != p.link.index || l.mtu != p.link.mtu {
		return fmt.Errorf("probe peers of device %s: its index or MTU has changed: %w", l.name, os.ErrNotExist)
	}
	if err := l.assign(p.self); err != nil {
		return fmt.Errorf("probe peers of device %s: %w", l.name, err)
	}
	return nil
}

// assign adds an address to the link, unless it has it. Without duplicate address detection
// it can be used at once; the link has no neighbours.
func (l link) assign(addr netip.Addr) error {
	err := netlink.AddrReplace(l.ref(), &netlink.Addr{
		IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(64, 128)},
		Scope: unix.RT_SCOPE_LINK, Flags: unix.IFA_F_NODAD,
	})
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		// net.ipv6.conf.<device>.disable_ipv6, ipv6.disable=1, an MTU below 1280.
		return fmt.Errorf("%w: %w", ErrNoProbes, err)
	case err != nil:
		return fmt.Errorf("assign address %s: %w", addr, explain(err))
	}
	return nil
}

func (p *Prober) open() (err error) {
	const flags = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	p.echo = true
	p.fd, err = unix.Socket(unix.AF_INET6, flags, unix.IPPROTO_ICMPV6)
	if err != nil {
		p.echo = false
		p.fd, err = unix.Socket(unix.AF_INET6, flags, unix.IPPROTO_UDP)
	}
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	// A link-local source binds the socket to its device.
	err = errors.Join(
		unix.SetsockoptInt(p.fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20),
		// The kernel's timestamps, since answers are read only at intervals.
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
	)
	if !p.echo {
		err = errors.Join(err, unix.SetsockoptInt(p.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
	}
	if err == nil {
		err = unix.Bind(p.fd, &unix.SockaddrInet6{Addr: p.self.As16(), ZoneId: uint32(p.link.index)})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set up a socket: %w", err), unix.Close(p.fd))
	}
	return nil
}

// payload returns a probe: for ICMPv6 with its header, in which the kernel fills in checksum
// and identifier.
func (p *Prober) payload(kind byte, size int) []byte {
	b := make([]byte, size)
	copy(b, p.token[:])
	b[len(p.token)] = kind
	if p.echo {
		b = append([]byte{echoRequest, icmpHeader - 1: 0}, b...)
	}
	return b
}

// Method returns how peers are probed: "echo" or "udp".
func (p *Prober) Method() string {
	if p.echo {
		return "echo"
	}
	return "udp"
}

// Close closes the socket. The address stays.
func (p *Prober) Close() error { return unix.Close(p.fd) }

// Send sends a probe to the peer with the given link-local address, small or as large as the
// device's MTU. The error wraps [ErrNoProbes] when no probes can be sent at all.
func (p *Prober) Send(to netip.Addr, large bool) error {
	packet := p.small
	if large {
		packet = p.large
	}
	addr := unix.SockaddrInet6{Addr: to.As16(), ZoneId: uint32(p.link.index)}
	stamp := packet[len(p.token)+1:]
	if p.echo {
		stamp = stamp[icmpHeader:]
	} else {
		addr.Port = discardPort
	}
	binary.BigEndian.PutUint32(stamp, uint32(time.Now().UnixMicro()))
	err := unix.Sendto(p.fd, packet, 0, &addr)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EACCES) {
		// A pending error of an earlier probe, which is in the error queue, too.
		err = unix.Sendto(p.fd, packet, 0, &addr)
	}
	switch {
	// EPERM comes from a local firewall rule or a full conntrack table, EMSGSIZE from a
	// reduced MTU.
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EMSGSIZE),
		errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ENODEV),
		errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%w: send: %w", ErrNoProbes, err)
	}
	return err
}

// Receive calls answered for each answer since the last call.
func (p *Prober) Receive(answered func(Answer)) error {
	if err := p.receive(0, answered); err != nil || p.echo {
		return err
	}
	return p.receive(unix.MSG_ERRQUEUE, answered)
}

// maxAnswers bounds the answers per call, several times the number of probes.
const maxAnswers = 4096

func (p *Prober) receive(flags int, answered func(Answer)) error {
	for range maxAnswers {
		n, oobn, _, from, err := unix.Recvmsg(p.fd, p.in, p.oob, flags|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EACCES),
			errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EMSGSIZE), errors.Is(err, unix.EPROTO):
			continue // The answer is in the error queue.
		case err != nil:
			return fmt.Errorf("receive answers: %w", err)
		}
		sender, ok := from.(*unix.SockaddrInet6)
		if !ok {
			continue
		}
		addr := netip.AddrFrom16(sender.Addr)
		offender, arrived := ancillary(p.oob[:oobn])
		if flags != 0 && offender != addr {
			continue // An error of this host itself.
		}
		if large, sent, ok := p.read(p.in[:n]); ok {
			answered(Answer{From: addr, Large: large, RTT: rtt(sent, arrived)})
		}
	}
	return nil
}

// read parses an answer: whether it is to a large probe, when that was sent, and whether it
// is ours.
func (p *Prober) read(b []byte) (large bool, sent uint32, ok bool) {
	if p.echo {
		if len(b) < icmpHeader || b[0] != echoReply {
			return false, 0, false
		}
		b = b[icmpHeader:]
	}
	if len(b) < len(p.token)+1+stampSize || !bytes.Equal(b[:len(p.token)], p.token[:]) {
		return false, 0, false
	}
	b = b[len(p.token):]
	return b[0] == sizeLarge, binary.BigEndian.Uint32(b[1:]), true
}

// rtt returns the round trip time; 0: not known.
func rtt(sent uint32, arrived time.Time) time.Duration {
	if arrived.IsZero() {
		return 0
	}
	if took := time.Duration(uint32(arrived.UnixMicro())-sent) * time.Microsecond; took <= maxRTT {
		return max(took, time.Microsecond)
	}
	return 0
}

// ancillary parses control messages: the sender of an ICMPv6 error, which is the address
// after a struct sock_extended_err of linux/errqueue.h, and the time of arrival.
func ancillary(oob []byte) (offender netip.Addr, arrived time.Time) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, time.Time{}
	}
	const extended = int(unsafe.Sizeof(unix.SockExtendedErr{}))
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			arrived = time.Unix((*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Unix())
			continue
		}
		if m.Header.Level != unix.IPPROTO_IPV6 || m.Header.Type != unix.IPV6_RECVERR || len(m.Data) < extended+24 {
			continue
		}
		addr := m.Data[extended:]
		if m.Data[4] != unix.SO_EE_ORIGIN_ICMP6 || binary.NativeEndian.Uint16(addr) != unix.AF_INET6 {
			continue
		}
		offender = netip.AddrFrom16([16]byte(addr[8:24]))
	}
	return offender, arrived
}
