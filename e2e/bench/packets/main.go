// Command packets measures the cost of a packet in the engine, which uses wireguard-go with
// its own TUN and sockets, and compares it with unchanged wireguard-go. Both run in turn
// between two namespaces of the same machine, without clusters and agents.
//
//	go run ./e2e/bench/packets
//	go run ./e2e/bench/packets -with ./server    # compares with another program that serves a device
//
// The first pair of each measurement is ignored, because buffers still grow and pages are
// touched for the first time. The program of -with is started as "server wg0 FILE": it
// serves that link with the UAPI configuration in the file until it is killed, as
// e2e/bench/fork does.
//
// Linux only, needs root.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "packets:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	ours, with string
	pairs      int
	seconds    time.Duration
	rate       int
	only       string
	json       string
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		if mode, ok := modes()[args[0]]; ok {
			return mode(args[1:])
		}
	}
	var opts options
	flags := flag.NewFlagSet("packets", flag.ContinueOnError)
	flags.StringVar(&opts.ours, "ours", "", "program to measure, instead of the tree's")
	flags.StringVar(&opts.with, "with", "", "program to measure beside, instead of wireguard-go")
	flags.IntVar(&opts.pairs, "pairs", 5, "how often each comparison is made")
	flags.DurationVar(&opts.seconds, "time", 3*time.Second, "how long one transfer takes")
	flags.IntVar(&opts.rate, "rate", 100000, "datagrams of 200 bytes offered per second, and once twice as many")
	flags.StringVar(&opts.only, "only", "", "measurements to make, a part of their names")
	flags.StringVar(&opts.json, "json", "", "file to append the figures to, one JSON object per line")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b, err := newBench(opts)
	if err != nil {
		return err
	}
	return errors.Join(b.measure(ctx), b.close())
}

// measurement is one of a side, and what it comes to: numbers by name.
type measurement struct {
	name string
	do   func(ctx context.Context, s *side) (map[string]float64, error)
}

func (b *bench) measurements() []measurement {
	tcp := func(streams int) func(context.Context, *side) (map[string]float64, error) {
		return func(ctx context.Context, s *side) (map[string]float64, error) {
			return b.tcp(ctx, s, s.spaces, inside, streams)
		}
	}
	tcpOfPods := func(streams int) func(context.Context, *side) (map[string]float64, error) {
		return func(ctx context.Context, s *side) (map[string]float64, error) {
			return b.tcp(ctx, s, s.pods, inPod, streams)
		}
	}
	return []measurement{
		{"TCP, 1 stream", tcp(1)},
		{"TCP, 4 streams", tcp(4)},
		{"TCP of pods, 1 stream", tcpOfPods(1)},
		{"TCP of pods, 4 streams", tcpOfPods(4)},
		{"UDP of 200 bytes", b.datagrams(b.rate)},
		{"UDP, twice that", b.datagrams(2 * b.rate)},
		{"idle", b.idle},
		// What makes no sense to the receiver, in the name of a session.
		{"TCP, garbage", b.beside("garbage", "192.0.2.2:51820", strconv.Itoa(b.rate))},
		// A peer that doesn't answer, see sides.go.
		{"TCP, dead peer", b.beside("udp-send", "10.9.0.3:5201", "200", strconv.Itoa(b.rate))},
		{"TCP and small UDP", b.beside("udp-send", "10.9.0.2:5202", "200", strconv.Itoa(b.rate/4))},
	}
}

func (b *bench) measure(ctx context.Context) error {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	fmt.Printf("load average before: %s\n", strings.TrimSpace(string(load)))
	if err := b.floor(ctx); err != nil {
		return err
	}
	for _, m := range b.measurements() {
		if !strings.Contains(m.name, b.only) {
			continue
		}
		found := map[string][2][]float64{}
		for i := range b.pairs + 1 {
			order := []int{i % 2, 1 - i%2}
			for _, at := range order {
				got, err := m.do(ctx, b.sides[at])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", m.name, b.sides[at].name, err)
				}
				if i == 0 {
					continue
				}
				for name, value := range got {
					both := found[name]
					both[at] = append(both[at], value)
					found[name] = both
				}
			}
		}
		for _, name := range sorted(found) {
			r := measure.Compared(m.name, name, b.sides[1].name, found[name][0], found[name][1], ratios(found[name]))
			fmt.Println(line(&r))
			if err := measure.Append(b.json, "./e2e/bench/packets", []measure.Result{r}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ratios returns that of each pair.
func ratios(both [2][]float64) []float64 {
	all := make([]float64, len(both[0]))
	for i := range all {
		all[i] = both[0][i] / both[1][i]
	}
	return all
}

func line(r *measure.Result) string {
	value := func(v *float64) float64 {
		if v == nil {
			return math.NaN()
		}
		return *v
	}
	spread := [2]float64{math.NaN(), math.NaN()}
	copy(spread[:], r.Spread)
	return fmt.Sprintf("%-17s %-28s ours %9.2f  beside %9.2f  ratio %.2f [%.2f-%.2f] of %d",
		r.Name, r.Unit, value(r.Ours), value(r.Beside), value(r.Ratio), spread[0], spread[1], r.Pairs)
}

func sorted[K cmp.Ordered, V any](m map[K]V) (keys []K) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// tcp measures a transfer through the tunnel, from the first of two namespaces to an
// address of the other one.
func (b *bench) tcp(ctx context.Context, s *side, between [2]*sandbox.Space, to string, streams int) (map[string]float64, error) {
	return b.transfer(ctx, s, between, []string{"tcp-receive", to, strconv.Itoa(streams)},
		[]string{"tcp-send", to, strconv.Itoa(streams), b.seconds.String()}, func(bytes, seconds float64) map[string]float64 {
			return map[string]float64{"Gbit/s": 8e-9 * bytes / seconds}
		})
}

// beside measures a transfer while the sending end does something else as well.
func (b *bench) beside(args ...string) func(context.Context, *side) (map[string]float64, error) {
	return func(ctx context.Context, s *side) (map[string]float64, error) {
		other, err := b.start(s.spaces[0], append(args[:len(args):len(args)], (b.seconds+time.Second).String())...)
		if err != nil {
			return nil, err
		}
		got, err := b.tcp(ctx, s, s.spaces, inside, 1)
		other.Kill()
		return got, err
	}
}

// datagrams measures how many of 200 bytes arrive when so many are offered per second. Who
// takes all of them isn't measured by that.
func (b *bench) datagrams(rate int) func(context.Context, *side) (map[string]float64, error) {
	return func(ctx context.Context, s *side) (map[string]float64, error) {
		return b.transfer(ctx, s, s.spaces, []string{"udp-receive", inside},
			[]string{"udp-send", inside, "200", strconv.Itoa(rate), b.seconds.String()}, func(bytes, seconds float64) map[string]float64 {
				return map[string]float64{"1000/s": bytes / 200 / seconds / 1000}
			})
	}
}

// transfer measures what a side needs for what is sent between two namespaces.
func (b *bench) transfer(ctx context.Context, s *side, between [2]*sandbox.Space, receive, send []string, figures func(bytes, seconds float64) map[string]float64) (map[string]float64, error) {
	receiver, err := b.start(between[1], receive...)
	if err != nil {
		return nil, err
	}
	sender, err := b.start(between[0], send...)
	if err != nil {
		return nil, err
	}
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	if _, err := finish(ctx, sender); err != nil {
		return nil, err
	}
	printed, err := finish(ctx, receiver)
	if err != nil {
		return nil, err
	}
	after, err := s.cpu()
	if err != nil {
		return nil, err
	}
	var bytes, seconds float64
	if _, err := fmt.Sscan(printed, &bytes, &seconds); err != nil {
		return nil, fmt.Errorf("the receiver printed %q: %w", printed, err)
	}
	got := figures(bytes, seconds)
	got["cores per Gbit/s"] = (after - before).Seconds() / (8e-9 * bytes)
	for i, name := range []string{"MB resident, sender", "MB resident, receiver"} {
		now, _, err := measure.Resident(s.servers[i].PID())
		if err != nil {
			return nil, err
		}
		got[name] = now / 1e6
	}
	return got, nil
}

// idle measures one round trip after the other.
func (b *bench) idle(ctx context.Context, s *side) (map[string]float64, error) {
	echo, err := b.start(s.spaces[1], "echo", inside)
	if err != nil {
		return nil, err
	}
	defer echo.Kill()
	ping, err := b.start(s.spaces[0], "ping", inside, "3000")
	if err != nil {
		return nil, err
	}
	printed, err := finish(ctx, ping)
	if err != nil {
		return nil, err
	}
	var median float64
	if _, err := fmt.Sscan(printed, &median); err != nil {
		return nil, fmt.Errorf("ping printed %q: %w", printed, err)
	}
	return map[string]float64{"us, round trip": median}, nil
}

// programs returns the two that are compared.
func (o options) programs() (programs [2][]string, names [2]string, err error) {
	self, err := os.Executable()
	if err != nil {
		return programs, names, err
	}
	programs = [2][]string{{self, "serve"}, {self, "serve-plain"}}
	names = [2]string{"ours", "wireguard-go"}
	for i, path := range []string{o.ours, o.with} {
		if path == "" {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			return programs, names, err
		}
		programs[i], names[i] = []string{path}, filepath.Base(path)
		if i == 0 {
			programs[i] = append(programs[i], "serve")
		}
	}
	return programs, names, nil
}
