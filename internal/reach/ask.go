package reach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// ServiceRequest is a service to ask as its clients do.
type ServiceRequest struct {
	// Name is its DNS name, and Want what it resolves to; without Want any address is right.
	Name string   `json:"name,omitempty"`
	Want []string `json:"want,omitempty"`
	// Addresses are those to connect to, with ports: its ClusterIPs and some endpoints.
	Addresses []string `json:"addresses,omitempty"`
	// HTTP sends a request, to which any response is a success.
	HTTP bool `json:"http,omitempty"`
}

// ServiceResult is the result of asking a service; empty: success.
type ServiceResult struct {
	// Name is the error of resolving the name, Found what it resolves to instead of Want. DNS
	// is the error of resolving the name of the cluster's own API server after one of both.
	Name  string   `json:"name,omitempty"`
	Found []string `json:"found,omitempty"`
	DNS   string   `json:"dns,omitempty"`
	// Failed has the errors of addresses, the first one of each.
	Failed map[string]string `json:"failed,omitempty"`
	// Sent is the number of repeated requests, and Lost of those without a response.
	Sent int `json:"sent,omitempty"`
	Lost int `json:"lost,omitempty"`
}

// fail adds the error of an address, unless it has one.
func (r *ServiceResult) fail(address string, err error) {
	if r.Failed == nil {
		r.Failed = map[string]string{}
	}
	if r.Failed[address] == "" {
		r.Failed[address] = short(err)
	}
}

const (
	// askFor is how long a service is asked without success: kube-proxy may take seconds to
	// serve a new ClusterIP.
	askFor = 10 * time.Second
	// MaxAsks bounds the services that a pod asks, at four addresses each, so that errors of
	// all of them fit into its termination message.
	MaxAsks = 10
	// apiService is a name that every cluster has, below its search domains.
	apiService = "kubernetes.default.svc"
	// repeatSpacing is the interval of repeated requests, and repeatWait how long each waits.
	repeatSpacing = 100 * time.Millisecond
	repeatWait    = 3 * time.Second
)

func askService(ctx context.Context, a ServiceRequest) ServiceResult {
	var result ServiceResult
	var mu sync.Mutex
	var group sync.WaitGroup
	if a.Name != "" {
		group.Go(func() {
			result.Name, result.Found = named(ctx, a)
			if result.Name != "" || len(result.Found) > 0 {
				_, err := until(ctx, askFor, func(ctx context.Context) (string, error) {
					_, err := net.DefaultResolver.LookupHost(ctx, apiService)
					return "", err
				})
				result.DNS = short(err)
			}
		})
	}
	for _, address := range a.Addresses {
		group.Go(func() {
			_, err := until(ctx, askFor, func(ctx context.Context) (string, error) { return "", connect(ctx, address, a.HTTP) })
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			result.fail(address, err)
		})
	}
	group.Wait()
	return result
}

// repeat asks the addresses that have answered again and again, one request after the other, until
// the end.
func (r *ServiceResult) repeat(ctx context.Context, a ServiceRequest, end time.Time) {
	var mu sync.Mutex
	var group sync.WaitGroup
	answering := slices.DeleteFunc(slices.Clone(a.Addresses), func(address string) bool { return r.Failed[address] != "" })
	for _, address := range answering {
		group.Go(func() {
			ticker := time.NewTicker(repeatSpacing)
			defer ticker.Stop()
			for time.Now().Before(end) {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				once, stop := context.WithTimeout(ctx, repeatWait)
				err := connect(once, address, a.HTTP)
				stop()
				mu.Lock()
				if r.Sent++; err != nil {
					r.Lost++
					r.fail(address, err)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
}

// named resolves the name until it has the wanted addresses.
func named(ctx context.Context, a ServiceRequest) (failed string, found []string) {
	differs := errors.New("other addresses")
	_, err := until(ctx, askFor, func(ctx context.Context) (string, error) {
		// The final dot prevents the use of the search list.
		all, err := net.DefaultResolver.LookupHost(ctx, strings.TrimSuffix(a.Name, ".")+".")
		if err != nil {
			return "", err
		}
		found = nil
		for _, address := range all {
			if len(a.Want) > 0 && !slices.Contains(a.Want, plain(address)) && len(found) < mostNamed {
				found = append(found, cut(plain(address), 45))
			}
		}
		if len(found) > 0 {
			return "", differs
		}
		return "", nil
	})
	if err == nil || errors.Is(err, differs) {
		return "", found
	}
	return short(err), nil
}

// connect opens a connection, and sends a request if it is HTTP.
func connect(ctx context.Context, address string, http bool) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // no unsent data
	if !http {
		return nil
	}
	if deadline, limited := ctx.Deadline(); limited {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nUser-Agent: semaphorectl\r\nConnection: close\r\n\r\n", address); err != nil {
		return err
	}
	_, err = bufio.NewReaderSize(conn, 16).ReadByte()
	if errors.Is(err, io.EOF) {
		return errors.New("connection closed without a response")
	}
	return err
}

// short returns an error without the addresses that net adds.
func short(err error) string {
	if err == nil {
		return ""
	}
	if op, is := errors.AsType[*net.OpError](err); is && op.Err != nil {
		err = op.Err
	}
	if dns, is := errors.AsType[*net.DNSError](err); is {
		return cut(dns.Err, longest)
	}
	return text(err)
}
