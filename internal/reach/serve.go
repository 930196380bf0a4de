package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// addresses returns the pod's own global addresses, as pods of other clusters know them.
func addresses(r Request) ([]string, error) {
	if len(r.Own) > 0 {
		return r.Own, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var own []string
	for _, address := range all {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			own = append(own, virtual(r.Map, ip.IP.String()))
		}
	}
	return own, nil
}

// virtual returns the address by which pods of other clusters know one, in canonical form.
func virtual(m config.SubnetMap, address string) string {
	ip, err := netip.ParseAddr(plain(address))
	if err != nil {
		return address
	}
	return m.Virtual(ip).String()
}

// plain returns the canonical form of an address.
func plain(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return address
}

// Serve serves what other pods try, for r.ServeFor.
func Serve(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.ServeFor)*time.Second)
	defer cancel()
	host := ""
	if len(r.Own) > 0 {
		host = r.Own[0]
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at(host))
	if err != nil {
		return err
	}
	packets, err := new(net.ListenConfig).ListenPacket(ctx, "udp", at(host))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		_, _ = fmt.Fprintln(w, from.Addr().Unmap().WithZone("")) // fails if the client is gone
	})
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body) // also an incomplete stream has a rate
		_, _ = fmt.Fprintln(w, n)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) }) // returns when the server is closed
	group.Go(func() { answerDatagrams(packets) })
	<-ctx.Done()
	err = errors.Join(server.Close(), packets.Close())
	group.Wait()
	return err
}

func answerDatagrams(packets net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < smallest {
			continue
		}
		_, _ = packets.WriteTo(datagram(buffer[:n]), from) // the other pod retries
	}
}
