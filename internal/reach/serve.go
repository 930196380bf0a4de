package reach

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Meet runs a Meeting for r.MeetFor.
func Meet(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.MeetFor)*time.Second)
	defer cancel()
	own, err := addresses(r)
	if err != nil {
		return err
	}
	meeting := NewMeeting(own, r.Meet, r.Await)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(MeetPort))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: meeting, ReadHeaderTimeout: 5 * time.Second}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) }) // returns when the server is closed
	group.Go(func() { meeting.Ask(ctx) })
	<-ctx.Done()
	err = errors.Join(server.Close(), meeting.State())
	group.Wait()
	return err
}

// addresses returns the pod's own global addresses, as pods of other clusters know them.
func addresses(r Request) ([]string, error) {
	if len(r.MeetFrom) > 0 {
		return r.MeetFrom, nil
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
