//go:build !linux

package reach

import (
	"context"
	"errors"
	"net"
)

// whole is for builds on other systems; pods run on Linux.
type whole struct {
	*net.UDPConn
	header int
	mtu    func() int
}

func dialWhole(context.Context, string) (*whole, error) { return nil, errors.ErrUnsupported }
