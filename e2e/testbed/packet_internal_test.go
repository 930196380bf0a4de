package testbed

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// frame builds an Ethernet frame with an IP packet of the family of src.
func frame(protocol uint8, src, dst string, payload []byte) []byte {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	b := make([]byte, etherHeader)
	if from.Is4() {
		binary.BigEndian.PutUint16(b[12:], etherIPv4)
		header := make([]byte, 20)
		header[0], header[9] = 0x45, protocol
		copy(header[12:], from.AsSlice())
		copy(header[16:], to.AsSlice())
		b = append(b, header...)
	} else {
		binary.BigEndian.PutUint16(b[12:], etherIPv6)
		header := make([]byte, 40)
		header[0], header[6] = 0x60, protocol
		copy(header[8:], from.AsSlice())
		copy(header[24:], to.AsSlice())
		b = append(b, header...)
	}
	return append(b, payload...)
}

// udp builds a datagram.
func udp(src, dst uint16, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	return append(append(b, 0, 0, 0, 0), payload...)
}

// testClassifier knows aws and gcp, and merit, which has the pod subnets of gcp and is known by
// others. Their nodes are machines 1, 2 and 3.
func testClassifier() classifier {
	tb := &Testbed{underlay: &underlay{ports: map[string]port{}}}
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	cluster := func(name, api, node string, pods, virtual []netip.Prefix) *Cluster {
		c := &Cluster{Name: name, PodSubnets: pods, VirtualSubnets: virtual}
		c.plane = newControlPlane(c, []netip.Addr{netip.MustParseAddr(api)}, ClusterConfig{})
		c.nodes = []*Node{{Host: Host{Name: name, tb: tb}, Cluster: c, addresses: []netip.Addr{netip.MustParseAddr(node)}}}
		return c
	}
	first, both := prefixes("10.2.0.0/16", "fd00:10:2::/48"), prefixes("10.4.0.0/16", "fd00:10:4::/48")
	return newClassifier([]*Cluster{
		cluster("aws", "10.66.0.11", "10.66.1.1", first, first),
		cluster("gcp", "10.66.0.12", "10.66.2.1", both, both),
		cluster("merit", "10.66.0.13", "10.66.3.1", both, prefixes("100.64.0.0/16", "fd00:64::/48")),
	})
}

// between sets the machines of a frame.
func between(sender, receiver int, frame []byte) []byte {
	copy(frame[:6], hardwareAddr(receiver, 0))
	copy(frame[6:12], hardwareAddr(sender, 0))
	return frame
}

func TestClassify(t *testing.T) {
	fragment := frame(protocolUDP, "10.2.0.5", "10.4.0.5", []byte{1, 0, 0, 0, 1, 0, 0, 0})
	binary.BigEndian.PutUint16(fragment[etherHeader+6:], 0x2001)
	first := append([]byte{protocolUDP, 0, 0, 1, 0, 0, 0, 7}, udp(51820, 51820, 4, 0, 0, 0)...)
	first = frame(protocolFragment, "fd00:66::1", "fd00:66::2", first)
	second := append([]byte{protocolUDP, 0, 5, 0xa8, 0, 0, 0, 7}, udp(51820, 51820, 4, 0, 0, 0)...)
	second = frame(protocolFragment, "fd00:66::1", "fd00:66::2", second)
	handshake := udp(51820, 51821, 1, 0, 0, 0)
	for _, c := range []struct {
		name  string
		frame []byte
		want  func(*Counts) *Traffic
	}{
		{"pod to a pod of another cluster", frame(protocolTCP, "10.2.0.5", "10.4.0.5", udp(1, 80)), plaintext},
		{"the same in IPv6", frame(protocolTCP, "fd00:10:2::5", "fd00:10:4::5", udp(1, 80)), plaintext},
		{"a later fragment", fragment, plaintext},
		{"node to a pod of another cluster", frame(1, "10.66.1.1", "10.4.0.5", nil), plaintext},
		{"pod to a node of another cluster", frame(1, "10.2.0.5", "10.66.2.1", nil), plaintext},
		{"pod to a stranger", frame(1, "10.2.0.5", "192.0.2.1", nil), plaintext},
		{"pod to pod that looks like WireGuard", frame(protocolUDP, "10.2.0.5", "10.4.0.5", handshake), plaintext},
		{"pod to an API server", frame(protocolTCP, "10.2.0.5", "10.66.0.12", udp(1, 6443)), plaintext},
		{"API server to a pod of its cluster", frame(protocolTCP, "10.66.0.12", "10.4.0.5", udp(1, 8080)), local},
		{"pod to the API server of its cluster", frame(protocolTCP, "10.4.0.5", "10.66.0.12", udp(8080, 1)), local},
		{"API server to a pod of its cluster, whose address another cluster has", frame(protocolTCP, "10.66.0.13", "10.4.0.5", udp(1, 8080)), local},
		{"API server to a pod of another cluster", frame(protocolTCP, "10.66.0.11", "10.4.0.5", udp(1, 8080)), plaintext},
		{"pod to a pod of the same cluster", frame(1, "10.2.0.5", "10.2.1.5", nil), local},
		{"node to a pod of the same cluster", frame(1, "10.66.1.1", "10.2.1.5", nil), local},
		{"pod to a node of the same cluster", frame(1, "10.2.1.5", "10.66.1.1", nil), local},
		{"pod to a pod of the same address in another cluster", between(2, 3, frame(1, "10.4.0.5", "10.4.1.5", nil)), plaintext},
		{"the same within the cluster", between(3, 3, frame(1, "10.4.0.5", "10.4.1.5", nil)), local},
		{"pod of the second cluster of its subnet to its node", between(3, 3, frame(1, "10.4.0.5", "10.66.3.1", nil)), local},
		{"the same to the first cluster's node", between(3, 2, frame(1, "10.4.0.5", "10.66.2.1", nil)), plaintext},
		{"to a virtual address", between(1, 3, frame(1, "10.2.0.5", "100.64.0.5", nil)), plaintext},
		{"from a virtual address", between(3, 1, frame(1, "100.64.0.5", "10.66.1.1", nil)), plaintext},
		{"virtual addresses within a cluster", between(3, 3, frame(1, "fd00:64::5", "fd00:10:4::5", nil)), plaintext},
		{"handshake", frame(protocolUDP, "10.66.1.1", "10.66.2.1", handshake), wireguard},
		{"handshake of a node without an address of its own", frame(protocolUDP, "10.2.0.1", "10.66.2.1", handshake), wireguard},
		{"the same to a stranger", frame(protocolUDP, "10.2.0.1", "192.0.2.1", handshake), plaintext},
		{"first fragment of data", first, wireguard},
		{"second fragment of data, whose content means nothing", second, other},
		{"type 5", frame(protocolUDP, "10.66.1.1", "10.66.2.1", udp(1, 2, 5, 0, 0, 0)), other},
		{"reserved bytes set", frame(protocolUDP, "10.66.1.1", "10.66.2.1", udp(1, 2, 1, 0, 1, 0)), other},
		{"too short", frame(protocolUDP, "10.66.1.1", "10.66.2.1", udp(1, 2, 1, 0, 0)), other},
		{"node to an API server", frame(protocolTCP, "10.66.1.1", "10.66.0.11", udp(1, 6443)), api},
		{"API server to a node", frame(protocolTCP, "10.66.0.11", "10.66.1.1", udp(6443, 1)), api},
		{"node to node", frame(1, "10.66.1.1", "10.66.2.1", nil), other},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, ok := parse(c.frame)
			if !ok {
				t.Fatal("not parsed")
			}
			var counts Counts
			testClassifier().of(p, &counts).Packets++
			got := counts
			*c.want(&counts) = Traffic{}
			if counts != (Counts{}) || *c.want(&got) != (Traffic{Packets: 1}) {
				t.Errorf("%s is counted as %s", p, got)
			}
		})
	}
}

func plaintext(c *Counts) *Traffic { return &c.Plaintext }
func local(c *Counts) *Traffic     { return &c.Local }
func wireguard(c *Counts) *Traffic { return &c.WireGuard }
func api(c *Counts) *Traffic       { return &c.API }
func other(c *Counts) *Traffic     { return &c.Other }

func TestParseLeavesOutWhatIsNotIP(t *testing.T) {
	arp := make([]byte, 60)
	binary.BigEndian.PutUint16(arp[12:], 0x0806)
	for name, frame := range map[string][]byte{
		"ARP":         arp,
		"nothing":     nil,
		"half a head": frame(1, "10.2.0.5", "10.4.0.5", nil)[:etherHeader+19],
		"half of six": frame(1, "fd00::1", "fd00::2", nil)[:etherHeader+39],
	} {
		if p, ok := parse(frame); ok {
			t.Errorf("%s is taken for %s", name, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(frame(protocolUDP, "10.2.0.5", "10.4.0.5", udp(1, 2, 1, 0, 0, 0)))
	f.Add(frame(protocolFragment, "fd00:10:2::5", "fd00:10:4::5", []byte{17, 0, 0, 0, 0, 0, 0, 0, 1}))
	f.Add(frame(protocolTCP, "10.66.0.11", "10.66.1.1", nil))
	classify := testClassifier()
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, ok := parse(frame)
		if !ok {
			return
		}
		if p.src.Addr().Is4() != (p.ether == etherIPv4) || p.src.Addr().Is4() != p.dst.Addr().Is4() {
			t.Errorf("families mixed up: %s", p)
		}
		var counts Counts
		traffic := classify.of(p, &counts)
		// A cut frame must never hide a leak.
		pod := false
		for _, address := range []netip.Addr{p.src.Addr(), p.dst.Addr()} {
			pod = pod || classify.podOf(address, nil) != nil || classify.isVirtual(address)
		}
		if pod != (traffic == &counts.Plaintext || traffic == &counts.Local) {
			t.Errorf("%s, pod %t, isn't counted as such", p, pod)
		}
	})
}

func TestCountsSub(t *testing.T) {
	later := Counts{WireGuard: Traffic{5, 500}, Plaintext: Traffic{1, 60}, Dropped: 3}
	earlier := Counts{WireGuard: Traffic{2, 100}, Dropped: 1}
	want := Counts{WireGuard: Traffic{3, 400}, Plaintext: Traffic{1, 60}, Dropped: 2}
	if got := later.Sub(earlier); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
