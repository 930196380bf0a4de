// Package backpressure limits the number of packets that wireguard-go has in flight, see
// [Window], and the number that it queues for peers without a session, see [NewDevice]
// and [Answer].
//
// wireguard-go has a limit of its own, PreallocatedBuffersPerPool, with pools that block
// (device.WaitPool) and count exactly. On Linux it is the constant 0, no limit. And packets
// that wait for a session stay in the pool, for each peer up to 128 reads: whatever the
// limit, enough peers that don't answer stop the traffic of all others. Measured on
// 2026-11-26 with a variable in place of the constant, on two cores that were in use:
//
//	                                    window    pools of 1,024    of 4,096
//	memory in TestFloods                21 MB     no traffic        65 MB
//	beside one peer that doesn't answer traffic   no traffic        traffic
//
// Without such peers, in ten alternating pairs of e2e/bench/packets, the throughput with a
// window was 1.07 [0.80-1.84] times that with pools of 1,024 for one TCP stream, 1.08
// [0.26-1.42] for four, 0.71 [0.41-0.91] for four between pods, and 1.08 [0.35-1.92] for
// datagrams of 200 bytes.
package backpressure
