// Package tunnel runs one WireGuard device towards one remote cluster.
//
// A [Device] is served by the kernel where the kernel knows WireGuard, and by the
// engine elsewhere, a process that goes on when this one ends. Both are configured through the
// same protocol (wgctrl: generic netlink or the UAPI socket), so callers can't
// tell them apart, and neither can wg(8).
//
// The caller drives a device with two idempotent calls: [Device.Ensure] makes
// the link what it should be, [Device.Configure] makes its peers what they
// should be. Both read before they write; when there is nothing to do they
// write nothing and log nothing.
package tunnel
