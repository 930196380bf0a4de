package handover

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// socket is a conn.Bind of which a thousand fit into memory.
type socket struct{ *net.UDPConn }

func (s *socket) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
	if err != nil {
		return nil, 0, err
	}
	s.UDPConn = c
	receive := func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		n, addr, err := c.ReadFromUDPAddrPort(packets[0])
		sizes[0], from[0] = n, &conn.StdNetEndpoint{AddrPort: addr}
		return min(n, 1), err
	}
	return []conn.ReceiveFunc{receive}, uint16(c.LocalAddr().(*net.UDPAddr).Port), nil
}

func (s *socket) Close() error {
	if s.UDPConn == nil {
		return nil
	}
	return s.UDPConn.Close()
}

func (s *socket) Send(packets [][]byte, to conn.Endpoint) error {
	for _, p := range packets {
		if _, err := s.WriteToUDPAddrPort(p, to.(*conn.StdNetEndpoint).AddrPort); err != nil {
			return err
		}
	}
	return nil
}

func (*socket) SetMark(uint32) error { return nil }
func (*socket) BatchSize() int       { return 1 }
func (*socket) ParseEndpoint(text string) (conn.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	return &conn.StdNetEndpoint{AddrPort: addr}, err
}

// single is a bind that receives one message at a time: a device keeps 64 KiB for each.
type single struct{ conn.Bind }

func (single) BatchSize() int { return 1 }

// crowd are many remotes of a node, each with a session.
type crowd struct {
	node    *node
	devices []*device.Device
	addrs   []netip.Addr
	links   []*cable
	seen    map[sealed]int

	greeted atomic.Int64 // packets with number 0 that arrived
	mu      sync.Mutex
	out, in map[uint64]bool // arrived
	sent    uint64          // each way
}

// newCrowd starts so many remotes.
func newCrowd(t *testing.T, n *node, size int) *crowd {
	t.Helper()
	c := &crowd{node: n, out: make(map[uint64]bool), in: make(map[uint64]bool), seen: make(map[sealed]int)}
	arrived := make(chan []byte, 1<<16) // at any of them
	for i := range size {
		r := newNode(t, n.under, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
		link := &cable{out: make(chan []byte, 64), in: arrived}
		var bind conn.Bind = new(socket)
		if r.at.IsValid() {
			bind = single{n.under.bind(r)}
		}
		watched := &spy{Bind: bind, seen: make(map[sealed]int)}
		d := device.NewDevice(link.plug(), watched, device.NewLogger(device.LogLevelSilent, ""))
		t.Cleanup(d.Close)
		watched.losing(func(in bool, m []byte) bool {
			if in && messageType(m) == device.MessageTransportType {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.seen[sealed{binary.LittleEndian.Uint32(m[4:]) ^ uint32(i)<<16, binary.LittleEndian.Uint64(m[8:])}]++
			}
			return false
		})
		public := n.key.PublicKey()
		if err := d.IpcSet(fmt.Sprintf("private_key=%x\npublic_key=%x\nallowed_ip=10.0.0.1/32\n", r.key[:], public[:])); err != nil {
			t.Fatal(err)
		}
		n.under.made(t, d)
		if err := d.Up(); err != nil {
			t.Fatal(err)
		}
		if s, kernel := bind.(*socket); kernel {
			r.at = s.LocalAddr().(*net.UDPAddr).AddrPort()
		}
		n.peer(r, r.at.String(), "")
		c.devices, c.addrs, c.links = append(c.devices, d), append(c.addrs, r.addr), append(c.links, link)
	}
	done := make(chan struct{})
	var receiving sync.WaitGroup
	for from, to := range map[<-chan []byte]map[uint64]bool{arrived: c.out, n.in: c.in} {
		receiving.Go(func() {
			for {
				select {
				case p := <-from:
					number := binary.BigEndian.Uint64(p[20:])
					if number == 0 {
						c.greeted.Add(1)
						continue
					}
					c.mu.Lock()
					to[number] = true
					c.mu.Unlock()
				case <-done:
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		close(done)
		receiving.Wait()
	})
	return c
}

// exchange sends a packet to each of the remotes and one from each, one after the other.
func (c *crowd) exchange(upTo int, pause time.Duration) {
	for i := range c.links[:upTo] {
		c.mu.Lock()
		c.sent++
		number := c.sent
		c.mu.Unlock()
		c.node.out <- packetOf(number, c.node.addr, c.addrs[i])
		c.links[i].out <- packetOf(number, c.addrs[i], c.node.addr)
		time.Sleep(pause)
	}
}

func (c *crowd) missing() (out, in int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.sent) - len(c.out), int(c.sent) - len(c.in)
}

var crowdSize = flag.Int("crowd", 100, "number of remotes in TestManyRemotes; with sockets of the kernel a busy machine loses packets of a thousand")

// Many remotes have sessions when the device is handed over, and some of them have gone
// since: nothing of the others is lost.
func TestManyRemotes(t *testing.T) {
	gone := *crowdSize / 20
	t.Run("all are there", func(t *testing.T) {
		nstest.Long(t)
		inBubble(t, func(t *testing.T) { testCrowd(t, newLAN(), 0, 3*time.Millisecond) })
	})
	runInBubble(t, "some are gone", func(t *testing.T) { testCrowd(t, newLAN(), gone, 3*time.Millisecond) })
	t.Run("some are gone, with sockets of the kernel", func(t *testing.T) {
		nstest.Long(t)
		testCrowd(t, loopback{}, gone, 200*time.Microsecond)
	})
}

// testCrowd hands over while packets to and from each remote follow one another after a
// pause.
func testCrowd(t *testing.T, under underlay, gone int, pause time.Duration) {
	n := newNode(t, under, "10.0.0.1")
	crowd := newCrowd(t, n, *crowdSize)
	e := n.start(t, false).up(t)
	t.Cleanup(n.closeFiles)
	arrived := func() bool { out, in := crowd.missing(); return out+in == 0 }
	// The first packet to each makes the session, and a remote that answers too
	// early makes another one.
	for _, addr := range crowd.addrs {
		n.out <- packetOf(0, n.addr, addr)
		time.Sleep(500 * time.Microsecond)
	}
	polltest.Until(t, time.Minute, "each remote has a session", func() bool { return crowd.greeted.Load() >= int64(*crowdSize) })
	crowd.exchange(*crowdSize, pause)
	polltest.Until(t, time.Minute, "packets arrive", arrived)
	here := *crowdSize - gone
	for _, d := range crowd.devices[here:] {
		d.Close()
	}
	over := make(chan struct{})
	began := time.Now()
	var took time.Duration
	go func() {
		defer close(over)
		handOver(t, e, func(s *Side) {
			s.Limits = DefaultLimits
			s.Limits.Answer, s.Limits.Patience = time.Minute, 3*time.Second
		})
		took = time.Since(began)
	}()
	for going := true; going; {
		crowd.exchange(here, pause)
		select {
		case <-over:
			going = false
		default:
		}
	}
	crowd.exchange(here, pause)
	end := time.Now().Add(10 * time.Second)
	for !arrived() && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	out, in := crowd.missing()
	t.Logf("the hand-over took %v; of %d packets each way %d out and %d in are lost", took, crowd.sent, out, in)
	if out > 0 || in > 0 {
		t.Error("packets are lost")
	}
	crowd.mu.Lock()
	defer crowd.mu.Unlock()
	for nonce, times := range crowd.seen {
		if times > 1 {
			t.Errorf("session %08x, counter %d was sent %d times", nonce.receiver, nonce.counter, times)
		}
	}
}
