//go:build !linux

package reach

import (
	"context"
	"errors"
	"net"
)

// whole is there for the types: pods of nodes with Linux try each other.
type whole struct {
	*net.UDPConn
	header int
	mtu    func() int
}

func dialWhole(context.Context, string) (*whole, error) { return nil, errors.ErrUnsupported }
