package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

const (
	// timeout bounds the request. The process waits at most 5 s for each part of the report
	// that hangs.
	timeout = 15 * time.Second
	// maxReport is the maximum size of a report in bytes. That of an agent with 10,000
	// peers has 5 MB.
	maxReport = 256 << 20
	// The kubelet waits for a probe for a second by default, and logs its output.
	probeTimeout = 4 * time.Second
	maxProbed    = 1000
)

// unixPrefix precedes the path of a Unix socket in addresses.
const unixPrefix = "unix:"

// Command is the command "status" of a program with report type R.
type Command[R any] struct {
	Program string // name
	// Address is the program's default probe address, such as ":8081".
	Address string
	// Show renders a report, with its problems.
	Show func(p *Page, report *R)
}

// Main runs the command with the arguments after "status", and returns the exit code:
// process.ExitFaults also if the program doesn't respond.
func (c Command[R]) Main(args []string) int {
	return c.Run(context.Background(), args, os.Stdout, os.Stderr)
}

// Run is Main with a context and outputs.
func (c Command[R]) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(c.Program+" status", flag.ContinueOnError)
	flags.SetOutput(stderr)
	output := flags.String("o", "table", "output format: table, or json (the report on stdout, problems and unknown states on stderr)")
	address := flags.String("address", c.probed(),
		"probe address of "+c.Program+": host:port, this machine without a host, or unix: and the path of a socket")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return process.ExitWell
	case err != nil:
		return process.ExitUsage
	}
	complain := func(code int, format string, args ...any) int {
		// An error means that stderr is closed: there is nowhere to report it.
		_, _ = fmt.Fprintln(stderr, c.Program+" status: "+printable.Text(fmt.Sprintf(format, args...), printable.Short))
		return code
	}
	if flags.NArg() > 0 {
		return complain(process.ExitUsage, "unknown argument %q", flags.Arg(0))
	}
	if *output != "table" && *output != "json" {
		return complain(process.ExitUsage, "-o %q: expected table or json", *output)
	}
	if _, _, err := net.SplitHostPort(*address); err != nil && !strings.HasPrefix(*address, unixPrefix) {
		return complain(process.ExitUsage, "-address %q: %v", *address, err)
	}

	body, err := fetch(ctx, *address, "/status", timeout)
	if err != nil {
		return complain(process.ExitFaults, "request the report from %s: %v", *address, err)
	}
	var report R
	if err := json.Unmarshal(body, &report); err != nil {
		return complain(process.ExitFaults, "the response of %s is not a report of %s: %v", *address, c.Program, err)
	}
	page := &Page{Now: time.Now()}
	c.Show(page, &report)
	if *output == "table" {
		err = page.print(stdout)
	} else if _, err = stdout.Write(printable.JSON(body)); err == nil {
		var b strings.Builder
		page.printComplaints(&b)
		_, err = io.WriteString(stderr, b.String())
	}
	if err != nil {
		return complain(process.ExitFaults, "print: %v", err)
	}
	switch {
	case len(page.wrong) > 0:
		return process.ExitFaults
	case len(page.unknown) > 0:
		return process.ExitUnknown
	}
	return process.ExitWell
}

// probed returns the probe address from the environment. The Unix socket has precedence,
// because only the process of the same pod can serve it.
func (c Command[R]) probed() string {
	if socket := os.Getenv("SEMAPHORE_PROBE_SOCKET"); socket != "" {
		return unixPrefix + socket
	}
	return cmp.Or(os.Getenv("SEMAPHORE_PROBE_ADDRESS"), c.Address)
}

// Probe is the command "probe" with its only argument, a path such as /readyz. It prints the
// response and returns the exit code: 0 for 200.
func (c Command[R]) Probe(args []string) int {
	return c.probe(context.Background(), args, os.Stdout, os.Stderr)
}

func (c Command[R]) probe(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	say := func(to io.Writer, code int, text string) int {
		// An error means that the output is closed: there is nowhere to report it.
		_, _ = fmt.Fprintln(to, text)
		return code
	}
	if len(args) != 1 || !strings.HasPrefix(args[0], "/") {
		return say(stderr, process.ExitUsage, c.Program+" probe: expected one path: /readyz or /healthz")
	}
	body, err := fetch(ctx, c.probed(), args[0], probeTimeout)
	if err != nil {
		return say(stdout, process.ExitFaults, printable.Text(err.Error(), maxProbed))
	}
	return say(stdout, process.ExitWell, printable.Text(strings.TrimSpace(string(body)), maxProbed))
}

// fetch requests a path at address. Without a host, or with a wildcard address on which a
// server may listen, it requests from this machine.
func fetch(ctx context.Context, address, path string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network := "tcp"
	if socket, ok := strings.CutPrefix(address, unixPrefix); ok {
		network, address = "unix", socket
	}
	// Without a proxy: the process is on this machine.
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		DisableKeepAlives: true,
	}
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		// Its URL is not that of the request.
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReport+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w", err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("response %s: %s", response.Status, bytes.TrimSpace(body))
	case len(body) > maxReport:
		return nil, fmt.Errorf("response of more than %d bytes", maxReport)
	}
	return body, nil
}
