package link

import (
	"fmt"
	"os"

	"golang.zx2c4.com/wireguard/tun"
)

// New returns the device of the TUN link that file is attached to, with IFF_VNET_HDR
// and IFF_NO_PI, and sets the link's MTU in bytes. The file doesn't
// block. It belongs to the device from then on, unless there is an error.
func New(file *os.File, mtu int) (tun.Device, error) {
	native, err := tun.CreateTUNFromFile(file, mtu)
	if err != nil {
		return nil, fmt.Errorf("serve TUN: %w", err)
	}
	return native, nil
}
