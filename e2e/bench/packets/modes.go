package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/backpressure"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/link"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/resume"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// modes are what this program starts itself for.
func modes() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"serve":       func(args []string) error { return serve(args, true) },
		"serve-plain": func(args []string) error { return serve(args, false) },
		"tcp-send":    tcpSend,
		"tcp-receive": tcpReceive,
		"udp-send":    udpSend,
		"udp-spread":  udpSpread,
		"udp-receive": udpReceive,
		"garbage":     garbage,
		"echo":        echo,
		"ping":        ping,
	}
}

const mtu = 1420

// serve serves a link with the configuration in a file.
func serve(args []string, ours bool) error {
	config, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	log := device.NewLogger(device.LogLevelError, "")
	var dev *device.Device
	if ours {
		// As the engine does.
		process.LimitMemory(slog.New(slog.DiscardHandler))
		defer process.GiveBack()()
		if err := process.ScheduleAsBatch(); err != nil {
			return err
		}
		file, err := openTUN(args[0])
		if err != nil {
			return err
		}
		native, err := link.New(file, mtu)
		if err != nil {
			return err
		}
		reader, bind := resume.NewTun(native), resume.NewBind(udp.New(udp.Config{}))
		reader.Start()
		bind.Start()
		dev = backpressure.NewDevice(reader, bind, log)
	} else {
		native, err := tun.CreateTUN(args[0], mtu)
		if err != nil {
			return err
		}
		dev = device.NewDevice(native, conn.NewDefaultBind(), log)
	}
	if err := dev.IpcSet(string(config)); err != nil {
		return err
	}
	if err := dev.Up(); err != nil {
		return err
	}
	<-dev.Wait()
	return errors.New("the device has ended")
}

func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// quiet is how long nothing arrives when all has arrived.
const quiet = 500 * time.Millisecond

func tcpSend(args []string) error {
	streams, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	long, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	return each(streams, func() error {
		var to net.Conn
		for limit := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if to, err = net.DialTimeout("tcp", args[0], time.Second); err == nil || time.Now().After(limit) {
				break
			}
		}
		if err != nil {
			return err
		}
		defer to.Close()
		if err := to.SetWriteDeadline(time.Now().Add(long)); err != nil {
			return err
		}
		buf := make([]byte, 128<<10)
		for {
			if _, err := to.Write(buf); errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
}

func tcpReceive(args []string) error {
	streams, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	var (
		total atomic.Int64
		first sync.Once
		start time.Time
	)
	err = each(streams, func() error {
		from, err := listener.Accept()
		if err != nil {
			return err
		}
		buf := make([]byte, 128<<10)
		for {
			n, err := from.Read(buf)
			first.Do(func() { start = time.Now() })
			total.Add(int64(n))
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	fmt.Println(total.Load(), time.Since(start).Seconds())
	return err
}

func each(count int, do func() error) error {
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { errs[i] = do() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// udpSend sends so many datagrams of a size per second for a while, each by itself.
func udpSend(args []string) error {
	size, err1 := strconv.Atoi(args[1])
	rate, err2 := strconv.Atoi(args[2])
	long, err3 := time.ParseDuration(args[3])
	to, err4 := net.Dial("udp", args[0])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	buf := make([]byte, size)
	if _, err := to.Write(buf); err != nil { // a session is made
		return err
	}
	time.Sleep(quiet / 2)
	return flood([]net.Conn{to}, buf, rate, long)
}

// udpSpread sends so many datagrams of a size per second for a while, to so many addresses
// in turns.
func udpSpread(args []string) error {
	first, err1 := netip.ParseAddrPort(args[0])
	count, err2 := strconv.Atoi(args[1])
	size, err3 := strconv.Atoi(args[2])
	rate, err4 := strconv.Atoi(args[3])
	long, err5 := time.ParseDuration(args[4])
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	var all []net.Conn
	for addr := first.Addr(); len(all) < count; addr = addr.Next() {
		to, err := net.Dial("udp", netip.AddrPortFrom(addr, first.Port()).String())
		if err != nil {
			return err
		}
		all = append(all, to)
	}
	return flood(all, make([]byte, size), rate, long)
}

// garbage sends transport messages of sessions that there may be, with nothing in them.
func garbage(args []string) error {
	rate, err1 := strconv.Atoi(args[1])
	long, err2 := time.ParseDuration(args[2])
	to, err3 := net.Dial("udp", args[0])
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	buf := make([]byte, 1452)
	buf[0] = 4
	return flood([]net.Conn{to}, buf, rate, long)
}

func flood(to []net.Conn, buf []byte, rate int, long time.Duration) error {
	start := time.Now()
	for sent := 0; ; {
		since := time.Since(start)
		if since > long {
			return nil
		}
		for ; sent < int(since.Seconds()*float64(rate)); sent++ {
			_, _ = to[sent%len(to)].Write(buf) // the receiver may not listen yet
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// udpReceive takes datagrams until none comes any more.
func udpReceive(args []string) error {
	addr, err := net.ResolveUDPAddr("udp", args[0])
	if err != nil {
		return err
	}
	from, err := net.ListenUDP("udp", addr)
	if err != nil {
		return err
	}
	if err := from.SetReadBuffer(4 << 20); err != nil {
		return err
	}
	var (
		total       int
		start, last time.Time
		buf         = make([]byte, 65535)
		deadline    = 20 * time.Second
	)
	for i := 0; ; i++ {
		if i%64 == 0 {
			if err := from.SetReadDeadline(time.Now().Add(deadline)); err != nil {
				return err
			}
		}
		n, err := from.Read(buf)
		if err != nil {
			break
		}
		last = time.Now()
		if start.IsZero() { // It made the session; the others come after a pause.
			start, i, deadline = last, -1, 2*quiet
			continue
		}
		if total == 0 {
			start = last
		}
		total += n
	}
	fmt.Println(total, max(last.Sub(start).Seconds(), 1e-9))
	return nil
}

func echo(args []string) error {
	addr, err := net.ResolveUDPAddr("udp", args[0])
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", addr)
	if err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if _, err := socket.WriteToUDPAddrPort(buf[:n], from); err != nil {
			return err
		}
	}
}

// ping prints the median of round trips in microseconds, each after a pause.
func ping(args []string) error {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	to, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	var took []time.Duration
	buf := make([]byte, 64)
	for lost := 0; len(took) < count && lost < 100; time.Sleep(200 * time.Microsecond) {
		start := time.Now()
		if err := to.SetDeadline(start.Add(100 * time.Millisecond)); err != nil {
			return err
		}
		sent := fmt.Sprintf("%064d", len(took)+lost)
		_, err := io.WriteString(to, sent)
		for clear(buf); err == nil && string(buf) != sent; { // skip delayed ones
			_, err = to.Read(buf)
		}
		if err != nil {
			lost++
			continue
		}
		took = append(took, time.Since(start))
	}
	if len(took) == 0 {
		return errors.New("no reply")
	}
	slices.Sort(took)
	fmt.Println(float64(took[len(took)/2]) / 1e3)
	return nil
}
