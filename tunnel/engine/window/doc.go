// Package window limits the number of packets that wireguard-go has in flight, see
// [Window], and the number that it queues for peers without a session, see [NewDevice]
// and [Answer].
package window
