package kube

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"sync"
)

// trust is a set of CA certificates and the connections verified with them.
type trust struct {
	transport http.RoundTripper
	certs     map[string]struct{} // DER
	conns     *connections
}

// parseCerts converts certificates from PEM to DER.
func parseCerts(content []byte) (map[string]struct{}, error) {
	certs := map[string]struct{}{}
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs[string(block.Bytes)] = struct{}{}
		}
	}
	if len(certs) == 0 {
		return nil, errors.New("contains no certificate in PEM")
	}
	return certs, nil
}

// covers reports whether t has all certificates of other: what verifies with other
// verifies with t.
func (t *trust) covers(other *trust) bool {
	for cert := range other.certs {
		if _, ok := t.certs[cert]; !ok {
			return false
		}
	}
	return true
}

// dialFunc is net.Dialer.DialContext.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// transportBuilder makes a transport that verifies servers with certificates in PEM.
type transportBuilder func(pem []byte, dial dialFunc) (http.RoundTripper, error)

// connections are those dialed under one trust.
type connections struct {
	dialer dialFunc
	dialed func() // called after each new connection

	mu      sync.Mutex
	open    map[*connection]struct{}
	revoked bool
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	inner, err := c.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	made := &connection{Conn: inner, of: c}
	c.mu.Lock()
	revoked := c.revoked
	if !revoked {
		c.open[made] = struct{}{}
	}
	c.mu.Unlock()
	if revoked {
		return nil, errors.Join(errors.New("the certificate authority was replaced meanwhile"), inner.Close())
	}
	c.dialed()
	return made, nil
}

// revoke closes all connections, and returns how many there were.
func (c *connections) revoke() int {
	c.mu.Lock()
	open := c.open
	c.open, c.revoked = map[*connection]struct{}{}, true
	c.mu.Unlock()
	for made := range open {
		_ = made.Conn.Close() // pending reads return an error
	}
	return len(open)
}

func (c *connections) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// connection removes itself from the open ones when it is closed.
type connection struct {
	net.Conn
	of *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
