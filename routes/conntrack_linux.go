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

// Constants of linux/netfilter/nf_conntrack_common.h and nfnetlink_conntrack.h that our
// libraries lack.
const (
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	ctaStatusMask   = 26     // CTA_STATUS_MASK, since Linux 5.18; older ones ignore it
	nestedMask      = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// DeleteUnreplied deletes the conntrack entries of unreplied TCP connections to addresses
// within the prefixes, and returns their number. Such an entry lives for two minutes,
// renewed by each packet: retries of the client, or a new attempt from the same port, go
// to the endpoint that was chosen for the first packet. Without the entry, kube-proxy
// chooses again for the next packet. Replied connections stay.
//
// It works in the network namespace of the calling thread, and does nothing where no
// connections are tracked.
func DeleteUnreplied(prefixes []netip.Prefix) (forgotten int, err error) {
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil || strings.TrimSpace(string(count)) == "0" {
		return 0, nil //nolint:nilerr // No connection tracking here, and a request would load its module.
	}
	within := newPrefixSet(prefixes)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var found [][]byte
		request := conntrackRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
		request.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, 0)))
		request.AddData(nl.NewRtAttr(ctaStatusMask, binary.BigEndian.AppendUint32(nil, statusSeenReply)))
		// An interrupted dump is good enough: the next call reads the rest.
		readErr := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			if to, attempt := parseUnreplied(message, family); attempt != nil && within.contains(to) {
				found = append(found, attempt)
			}
			return true
		})
		if readErr != nil && !errors.Is(readErr, nl.ErrDumpInterrupted) {
			return forgotten, fmt.Errorf("read the kernel's connection tracking: %w", readErr)
		}
		for _, attempt := range found {
			request := conntrackRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
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

func conntrackRequest(operation, flags int, family uint8) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return request
}

// parseUnreplied parses a conntrack entry. It returns its destination after NAT, and the
// attributes that identify it; nil when it is not an unreplied TCP connection.
func parseUnreplied(message []byte, family uint8) (to netip.Addr, name []byte) {
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
			to, tcp = parseReply(a.Value, family)
		case nl.CTA_TUPLE_ORIG, nl.CTA_ID, nl.CTA_ZONE:
			name = append(name, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
		}
	}
	if !tcp || !to.IsValid() {
		return to, nil
	}
	return to, name
}

// parseReply returns the source of the reply tuple, and whether it is TCP.
func parseReply(tuple []byte, family uint8) (from netip.Addr, tcp bool) {
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

// prefixSet is a set of prefixes with fast lookup of addresses.
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
