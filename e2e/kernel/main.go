// Command kernel runs the tests of packages as root in an emulated machine whose kernel has
// WireGuard, so that code that depends on the kernel can be tested on any machine with qemu.
//
//	go run ./e2e/kernel ./tunnel ./routes ./peers
//	go run ./e2e/kernel ./tunnel './agent:RestartsGoUnnoticed'
//	go run ./e2e/kernel -append ipv6.disable=1 -run IPv6 ./tunnel
//
// The kernel is Debian's, downloaded once into a cache and booted without being
// installed. With -programs the machine has a few programs of Debian and of the testbed,
// such as kube-proxy, as well. The machine's whole file system is in memory: a guest program as
// process 1, the kernel modules, and one static test binary for each package.
// Tests see SEMAPHORE_TEST_KERNEL=1 in their environment, are root, and have the
// machine to themselves, without any other program or network.
//
// A test of the machine itself, e2e/kernel/selftest, runs before the others, so
// that a broken machine isn't taken for a broken product. The exit code is 0
// when every package ran at least one test and none failed, 1 when tests failed,
// 2 when the machine could not be built, did not start, hung or panicked.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// qemuProgram emulates the machine.
const qemuProgram = "qemu-system-x86_64"

// waitDelay is how long the output of a killed command is awaited: what it
// started may live on and hold it.
const waitDelay = 5 * time.Second

// Exit codes.
const (
	exitFailed = 1
	exitBroken = 2
)

// options are the settings of one run.
type options struct {
	packages    []string
	accel       string
	cache       string
	modules     string
	parameters  string
	run         string
	testArgs    string
	programs    string
	memory      int
	timeout     time.Duration
	testTimeout time.Duration
	keep        bool
	refresh     bool
	verbose     bool
}

func main() {
	// qemu dies with the thread that started it, which this keeps alive.
	runtime.LockOSThread()
	opts, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
	os.Exit(mainWithSignals(opts))
}

// mainWithSignals returns the exit code after everything has been cleaned up.
func mainWithSignals(opts options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, opts.timeout, fmt.Errorf("not done after %v (-timeout)", opts.timeout))
	defer cancel()
	ok, err := runTests(ctx, opts, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "test-kernel: %v\n", err)
		return exitBroken
	case !ok:
		return exitFailed
	}
	return 0
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var opts options
	flags := flag.NewFlagSet("kernel", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: kernel [flags] package[:expression]...\n\nRuns the tests of packages in an emulated machine with a WireGuard kernel.\n\n")
		flags.PrintDefaults()
	}
	home, err := os.UserCacheDir()
	if err != nil {
		home = os.TempDir()
	}
	flags.StringVar(&opts.accel, "accel", accelAuto, "how to run the machine: auto, kvm or tcg (emulation)")
	flags.StringVar(&opts.cache, "cache", filepath.Join(home, "kube-semaphore", "kernel"), "`folder` that keeps kernels")
	flags.StringVar(&opts.modules, "modules", "wireguard,veth,tun,bridge,dummy,vrf,nf_tables,nft_fib_inet,nft_chain_nat,nft_nat,nft_masq", "kernel `modules` to load, comma-separated")
	flags.StringVar(&opts.parameters, "append", "", "more `parameters` for the kernel's command line, such as ipv6.disable=1")
	flags.StringVar(&opts.run, "run", "", "run only the tests that this `expression` matches")
	flags.StringVar(&opts.testArgs, "args", "", "more `arguments` for the tests, separated by spaces")
	flags.StringVar(&opts.programs, "programs", "", "more `programs` for the machine, comma-separated: iptables, ipset, or tools of the testbed such as kube-proxy")
	flags.IntVar(&opts.memory, "memory", 1536, "memory of the machine in `MiB`")
	flags.DurationVar(&opts.timeout, "timeout", 30*time.Minute, "time for everything")
	flags.DurationVar(&opts.testTimeout, "test-timeout", 10*time.Minute, "time for the tests of one package")
	flags.BoolVar(&opts.keep, "keep", false, "keep the machine's files and print the command that boots it")
	flags.BoolVar(&opts.refresh, "refresh", false, "use Debian's current kernel, also when the cache has one")
	flags.BoolVar(&opts.verbose, "v", false, "print all output as it comes")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	opts.packages = flags.Args()
	opts.modules = strings.Join(append([]string{opts.modules}, modulesFor(opts.programs)...), ",")
	if len(opts.packages) == 0 {
		flags.Usage()
		return options{}, errors.New("no packages given")
	}
	return opts, nil
}

// runTests builds the machine, runs it and reports whether all tests passed. An
// error means that the result is unknown.
func runTests(ctx context.Context, opts options, out io.Writer) (ok bool, err error) {
	if runtime.GOARCH != "amd64" {
		return false, fmt.Errorf("the machine is an amd64 one; this is %s", runtime.GOARCH)
	}
	// Without /proc/cpuinfo KVM isn't used.
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	accels, err := accelerators(opts.accel, usableKVM(string(cpuinfo), "/dev/kvm"))
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "kube-semaphore-kernel-")
	if err != nil {
		return false, err
	}
	if !opts.keep {
		defer os.RemoveAll(dir)
	}
	m, tests, err := build(ctx, opts, dir, out)
	if err != nil {
		return false, cause(ctx, err)
	}
	if opts.keep {
		m.accel = accels[0]
		fmt.Fprintf(out, "kept: %s\n%s %s\n", dir, qemuProgram, shellWords(m.args("/dev/stdout", "/dev/stderr")))
	}
	for i, accel := range accels {
		m.accel = accel
		last := i == len(accels)-1
		m.bootTimeout = 3 * time.Minute
		if !last {
			m.bootTimeout = 20 * time.Second
		}
		started := time.Now()
		report := &reporter{out: out, verbose: opts.verbose}
		var console bytes.Buffer
		err = m.run(ctx, &console, report.receive)
		report.finish()
		if err != nil && report.up == "" && !last && ctx.Err() == nil {
			fmt.Fprintf(out, "machine: %v with %s\n", err, accel)
			continue
		}
		fmt.Fprintf(out, "machine: %s, %.1fs\n", accel, time.Since(started).Seconds())
		if report.fault != "" {
			err = errors.Join(err, fmt.Errorf("the machine gave up: %s", report.fault))
		}
		showConsole(out, console.String(), err != nil || report.failed(tests))
		return !report.failed(tests), cause(ctx, err)
	}
	return false, err
}

// build makes kernel and file system and returns the machine, and how many
// packages it tests.
func build(ctx context.Context, opts options, dir string, out io.Writer) (machine, int, error) {
	d := debian{cache: opts.cache, log: out}
	if err := d.install(ctx, map[string]string{qemuProgram: "qemu-system-x86", "xz": "xz-utils"}); err != nil {
		return machine{}, 0, err
	}
	kernel, err := d.kernel(ctx, opts.refresh)
	if err != nil {
		return machine{}, 0, err
	}
	fmt.Fprintf(out, "kernel: %s\n", kernel.version)
	tree, err := openModules(kernel.modules)
	if err != nil {
		return machine{}, 0, err
	}
	wanted := append([]string{"virtio_pci", "virtio_rng"}, strings.Split(opts.modules, ",")...)
	modules, err := tree.resolve(ctx, wanted...)
	if err != nil {
		return machine{}, 0, err
	}
	c := compiler{out: dir}
	guest, err := c.guest(ctx)
	if err != nil {
		return machine{}, 0, err
	}
	tests, err := c.choose(ctx, append([]string{selftestPkg}, opts.packages...))
	if err != nil {
		return machine{}, 0, err
	}
	for i := range tests {
		fmt.Fprintf(out, "build\t%s\n", tests[i].pkg)
		if tests[i], err = c.test(ctx, tests[i]); err != nil {
			return machine{}, 0, err
		}
	}
	names := strings.FieldsFunc(opts.programs, func(r rune) bool { return r == ',' })
	programs, err := d.programs(ctx, names)
	if err != nil {
		return machine{}, 0, err
	}
	initrd := filepath.Join(dir, "initrd")
	err = writeImage(initrd, image{
		guest: guest, modules: modules, programs: programs, tests: tests, runExpr: opts.run, arguments: strings.Fields(opts.testArgs),
		timeout: opts.testTimeout, interval: 2 * time.Second,
	})
	if err != nil {
		return machine{}, 0, err
	}
	return machine{
		program: qemuProgram,
		kernel:  kernel.image, initrd: initrd,
		memory: opts.memory, cpus: min(runtime.NumCPU(), 4), silence: time.Minute,
		parameters: opts.parameters,
	}, len(tests), nil
}

func writeImage(file string, i image) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(i.write(f), f.Close()); err != nil {
		return fmt.Errorf("write the machine's file system: %w", err)
	}
	return nil
}

// showConsole prints the kernel's log: all of it when something went wrong, and
// always when the kernel complained.
func showConsole(out io.Writer, console string, wrong bool) {
	if wrong || strings.Contains(console, "WARNING:") || strings.Contains(console, "BUG:") {
		fmt.Fprintf(out, "--- kernel log ---\n%s--- end of kernel log ---\n", strings.ReplaceAll(console, "\r", ""))
	}
}

// cause prefers the reason why ctx ended over what ended with it.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// shellWords quotes arguments for a shell.
func shellWords(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if strings.ContainsAny(arg, " $'\"\\*?()<>|&;") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
