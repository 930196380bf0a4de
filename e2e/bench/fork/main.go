// Command fork serves a WireGuard device with Tailscale's fork of wireguard-go, for
// comparison with the engine. It is a separate module, so that the product doesn't depend
// on the fork:
//
//	go -C e2e/bench/fork build -o /tmp/fork .
//	go run ./e2e/bench/packets -with /tmp/fork
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/tailscale/wireguard-go/conn"
	"github.com/tailscale/wireguard-go/device"
	"github.com/tailscale/wireguard-go/tun"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fork:", err)
		os.Exit(1)
	}
}

// serve serves the link of that name with the configuration in a file.
func serve(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: fork LINK FILE")
	}
	config, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	native, err := tun.CreateTUN(args[0], 1420)
	if err != nil {
		return err
	}
	dev := device.NewDevice(native, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	if err := dev.IpcSet(string(config)); err != nil {
		return err
	}
	if err := dev.Up(); err != nil {
		return err
	}
	<-dev.Wait()
	return errors.New("the device has ended")
}
