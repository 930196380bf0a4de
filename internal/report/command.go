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
)

const (
	// timeout is how long the process may take to answer. It waits at most 5 s
	// for each part that hangs.
	timeout = 15 * time.Second
	// maxReport bounds what is read. The report of an agent with 10,000 peers
	// has 5 MB.
	maxReport = 256 << 20
	// A probe is answered at once, or it fails; the kubelet waits for a second by
	// default, and logs what is printed.
	probeTimeout = 4 * time.Second
	maxProbed    = 1000
)

// unixPrefix is what the address of a Unix socket begins with; its path follows.
const unixPrefix = "unix:"

// Exit codes of the command.
const (
	exitWell  = 0
	exitWrong = 1 // something is wrong, or nobody answers
	exitUsage = 2
	// Nothing is wrong as far as is known, and of something there is no sign.
	exitUnknown = 3
)

// Command is the command "status" of one program, whose report R is.
type Command[R any] struct {
	// Program is the program's name.
	Program string
	// Address is where the program answers probes, and its own host, when nobody
	// says otherwise, as in ":8081".
	Address string
	// Show puts a report onto a page, and what is wrong in it.
	Show func(p *Page, report *R)
}

// Main runs the command with its arguments, those after the word "status", and
// returns the exit code: 0 when all is well, 1 when something is wrong or the
// program doesn't answer, 2 when the arguments are wrong, 3 when nothing is known to be
// wrong and there is something of which isn't known whether it is well.
func (c Command[R]) Main(args []string) int {
	return c.Run(context.Background(), args, os.Stdout, os.Stderr)
}

// Run is Main with its surroundings as arguments.
func (c Command[R]) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(c.Program+" status", flag.ContinueOnError)
	flags.SetOutput(stderr)
	output := flags.String("o", "table", "table, or json: the report as it is, on stdout, and what is wrong or not known in it on stderr")
	address := flags.String("address", c.probed(),
		"host:port that "+c.Program+" answers probes on, without a host it is this machine; or unix: and the path of a socket")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitWell
	case err != nil:
		return exitUsage
	}
	complain := func(code int, format string, args ...any) int {
		// Nothing is to be done about a stderr that is closed.
		_, _ = fmt.Fprintln(stderr, c.Program+" status: "+printable.Text(fmt.Sprintf(format, args...), printable.Short))
		return code
	}
	if flags.NArg() > 0 {
		return complain(exitUsage, "unknown argument %q", flags.Arg(0))
	}
	if *output != "table" && *output != "json" {
		return complain(exitUsage, "-o %q: table or json", *output)
	}
	if _, _, err := net.SplitHostPort(*address); err != nil && !strings.HasPrefix(*address, unixPrefix) {
		return complain(exitUsage, "-address %q: %v", *address, err)
	}

	body, err := fetch(ctx, *address, "/status", timeout)
	if err != nil {
		return complain(exitWrong, "ask %s: %v", *address, err)
	}
	var report R
	if err := json.Unmarshal(body, &report); err != nil {
		return complain(exitWrong, "%s does not answer as %s does: %v", *address, c.Program, err)
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
		return complain(exitWrong, "print: %v", err)
	}
	switch {
	case len(page.wrong) > 0:
		return exitWrong
	case len(page.unknown) > 0:
		return exitUnknown
	}
	return exitWell
}

// probed returns where the program answers probes, as far as the environment says: a
// socket, which is that of the own pod, comes first.
func (c Command[R]) probed() string {
	if socket := os.Getenv("SEMAPHORE_PROBE_SOCKET"); socket != "" {
		return unixPrefix + socket
	}
	return cmp.Or(os.Getenv("SEMAPHORE_PROBE_ADDRESS"), c.Address)
}

// Probe is the command "probe" with its only argument, a path such as /readyz. It
// prints the answer and returns the exit code: 0 when that is 200.
func (c Command[R]) Probe(args []string) int {
	return c.probe(context.Background(), args, os.Stdout, os.Stderr)
}

func (c Command[R]) probe(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	say := func(to io.Writer, code int, text string) int {
		// Nothing is to be done about an output that is closed.
		_, _ = fmt.Fprintln(to, text)
		return code
	}
	if len(args) != 1 || !strings.HasPrefix(args[0], "/") {
		return say(stderr, exitUsage, c.Program+" probe: one path is expected: /readyz or /healthz")
	}
	body, err := fetch(ctx, c.probed(), args[0], probeTimeout)
	if err != nil {
		return say(stdout, exitWrong, printable.Text(err.Error(), maxProbed))
	}
	return say(stdout, exitWell, printable.Text(strings.TrimSpace(string(body)), maxProbed))
}

// fetch reads a path at address. An address without a host, or with that of
// all interfaces, which is what servers listen on, is this machine.
func fetch(ctx context.Context, address, path string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network := "tcp"
	if socket, ok := strings.CutPrefix(address, unixPrefix); ok {
		network, address = "unix", socket
	}
	// No proxy: this is a request to a process nearby.
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
		// The address that it names is not the one that was asked for.
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
		return nil, fmt.Errorf("read the answer: %w", err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the answer is %s: %s", response.Status, bytes.TrimSpace(body))
	case len(body) > maxReport:
		return nil, fmt.Errorf("the answer has more than %d bytes", maxReport)
	}
	return body, nil
}
