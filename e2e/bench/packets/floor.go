package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"
)

// floor prints what no engine can do better: the link between the namespaces by itself,
// whose processor time is that of sender and receiver, and encryption and decryption by
// themselves.
func (b *bench) floor(ctx context.Context) error {
	var rates [2]float64
	for i, streams := range []int{1, 4} {
		got, err := b.tcp(ctx, b.sides[0], b.sides[0].spaces, "192.0.2.2:5201", streams)
		if err != nil {
			return fmt.Errorf("veth alone: %w", err)
		}
		rates[i] = got["Gbit/s"]
	}
	fmt.Printf("%-17s %.2f Gbit/s with 1 stream, %.2f with 4\n", "veth alone", rates[0], rates[1])
	seal, open, err := cryptoAlone()
	if err != nil {
		return err
	}
	fmt.Printf("%-17s %.2f cores per Gbit/s to seal, %.2f to open\n", "crypto alone", seal, open)
	return nil
}

// cryptoAlone measures cores per Gbit/s for full packets.
func cryptoAlone() (seal, open float64, err error) {
	key := make([]byte, chacha20poly1305.KeySize)
	if _, err := rand.Read(key); err != nil {
		return 0, 0, err
	}
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		return 0, 0, err
	}
	var (
		nonce  [chacha20poly1305.NonceSize]byte
		packet = make([]byte, mtu)
		sealed = aead.Seal(nil, nonce[:], packet, nil)
		room   = make([]byte, 0, len(sealed))
	)
	measure := func(do func() error) (float64, error) {
		const rounds = 200_000
		start, err := cpuTime()
		if err != nil {
			return 0, err
		}
		for range rounds {
			if err := do(); err != nil {
				return 0, err
			}
		}
		end, err := cpuTime()
		return (end - start).Seconds() / (8e-9 * mtu * rounds), err
	}
	if seal, err = measure(func() error { aead.Seal(room, nonce[:], packet, nil); return nil }); err != nil {
		return 0, 0, err
	}
	open, err = measure(func() error { _, err := aead.Open(room, nonce[:], sealed, nil); return err })
	return seal, open, err
}

// cpuTime is the processor time of this process, whatever else the machine does.
func cpuTime() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), err
}
