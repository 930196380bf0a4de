package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What linux/netfilter/nf_conntrack_common.h and nfnetlink_conntrack.h have and the
// packages that we use don't.
const (
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	ctaStatusMask   = 26     // CTA_STATUS_MASK, since Linux 5.18; older ones hand out everything
	nestedMask      = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// ForgetAttempts has the kernel forget the TCP connections to addresses within the
// prefixes that nobody has answered yet, and returns how many it were. Such an entry of
// the connection tracking lives for two minutes, and longer with each packet: a client
// that tries again, or anew from the same port, is sent to the endpoint that was chosen
// for the first packet, although kube-proxy would choose another one by now. It does so
// for the next packet once the entry is gone. Connections that were answered stay.
//
// It works in the network namespace of the calling thread. Where no connections are
// tracked there is nothing to forget.
func ForgetAttempts(prefixes []netip.Prefix) (forgotten int, err error) {
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil || strings.TrimSpace(string(count)) == "0" {
		return 0, nil //nolint:nilerr // Nothing tracks connections here, and asking would load what does.
	}
	within := newPrefixSet(prefixes)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var found [][]byte
		request := attemptsRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
		request.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, 0)))
		request.AddData(nl.NewRtAttr(ctaStatusMask, binary.BigEndian.AppendUint32(nil, statusSeenReply)))
		// A table that changes meanwhile is read as far as it goes: there is a next time.
		readErr := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			if to, attempt := readAttempt(message, family); attempt != nil && within.contains(to) {
				found = append(found, attempt)
			}
			return true
		})
		if readErr != nil && !errors.Is(readErr, nl.ErrDumpInterrupted) {
			return forgotten, fmt.Errorf("read the kernel's connection tracking: %w", readErr)
		}
		for _, attempt := range found {
			request := attemptsRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
			request.AddRawData(attempt)
			switch _, deleteErr := request.Execute(unix.NETLINK_NETFILTER, 0); {
			case deleteErr == nil:
				forgotten++
			case !errors.Is(deleteErr, os.ErrNotExist):
				err = errors.Join(err, fmt.Errorf("delete an entry of the kernel's connection tracking: %w", deleteErr))
			}
		}
	}
	return forgotten, err
}

func attemptsRequest(operation, flags int, family uint8) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return request
}

// readAttempt reads an entry of the connection tracking. It returns where its packets
// go, after translation, and what names it: nil when it is no attempt.
func readAttempt(message []byte, family uint8) (to netip.Addr, name []byte) {
	const header = 4 // struct nfgenmsg
	if len(message) < header {
		return to, nil
	}
	attrs, err := nl.ParseRouteAttr(message[header:])
	if err != nil {
		return to, nil
	}
	tcp := false
	for _, a := range attrs {
		switch a.Attr.Type & nestedMask {
		case nl.CTA_STATUS:
			if len(a.Value) < 4 || binary.BigEndian.Uint32(a.Value)&statusSeenReply != 0 {
				return to, nil
			}
		case nl.CTA_TUPLE_REPLY:
			to, tcp = readReply(a.Value, family)
		case nl.CTA_TUPLE_ORIG, nl.CTA_ID, nl.CTA_ZONE:
			name = append(name, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
		}
	}
	if !tcp || !to.IsValid() {
		return to, nil
	}
	return to, name
}

// readReply reads from where answers would come, and whether they were TCP's.
func readReply(tuple []byte, family uint8) (from netip.Addr, tcp bool) {
	source := uint16(nl.CTA_IP_V4_SRC)
	if family == unix.AF_INET6 {
		source = nl.CTA_IP_V6_SRC
	}
	each(tuple, func(kind uint16, value []byte) {
		switch kind {
		case nl.CTA_TUPLE_IP:
			each(value, func(kind uint16, value []byte) {
				if kind == source {
					from, _ = netip.AddrFromSlice(value)
				}
			})
		case nl.CTA_TUPLE_PROTO:
			each(value, func(kind uint16, value []byte) {
				if kind == nl.CTA_PROTO_NUM && len(value) > 0 {
					tcp = value[0] == unix.IPPROTO_TCP
				}
			})
		}
	})
	return from, tcp
}

func each(attributes []byte, do func(kind uint16, value []byte)) {
	attrs, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return
	}
	for _, a := range attrs {
		do(a.Attr.Type&nestedMask, a.Value)
	}
}

// prefixSet finds out fast whether an address is within one of many prefixes.
type prefixSet struct {
	all  map[netip.Prefix]struct{}
	bits map[int]struct{}
}

func newPrefixSet(prefixes []netip.Prefix) prefixSet {
	s := prefixSet{map[netip.Prefix]struct{}{}, map[int]struct{}{}}
	for _, p := range prefixes {
		s.all[p.Masked()], s.bits[p.Bits()] = struct{}{}, struct{}{}
	}
	return s
}

func (s prefixSet) contains(addr netip.Addr) bool {
	for bits := range s.bits {
		if p, err := addr.Prefix(bits); err == nil {
			if _, there := s.all[p]; there {
				return true
			}
		}
	}
	return false
}
