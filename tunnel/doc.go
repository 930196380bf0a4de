// Package tunnel manages WireGuard devices, one for each remote cluster.
//
// A [Device] is served by the kernel where that supports WireGuard, elsewhere by the engine,
// a process that outlives this one. Both are configured through wgctrl (generic netlink or
// the UAPI socket), and look the same to callers and to wg(8).
//
// A device is reconciled by two idempotent calls: [Device.Ensure] for its link and
// [Device.Configure] for its peers. Both read before they write; without a difference they
// neither write nor log anything.
package tunnel
