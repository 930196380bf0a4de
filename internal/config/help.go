package config

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// help writes the usage message.
func (l *loader) help(out io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s.\n\n", l.program, l.purpose)
	l.commands(&b)
	b.WriteString("\nSettings are environment variables; flags override them.\n\n")
	describeAll(&b, l.settings)
	b.WriteString("\nFor each remote, where <NAME> is its name in upper case, with _ for -:\n\n")
	describeAll(&b, remoteSettings(groupPrefix("<name>"), new(Remote)))
	b.WriteString("\nFlags without a variable:\n\n")
	describeAll(&b, l.target)
	var rest []string
	for name, usage := range l.ownFlags() {
		rest = append(rest, "  -"+name+"\n        "+usage+"\n")
	}
	slices.Sort(rest)
	b.WriteString(strings.Join(rest, ""))
	// An error means that stdout is closed: there is nowhere to report it.
	_, _ = io.WriteString(out, b.String())
}

// commands lists the subcommands.
func (l *loader) commands(b *strings.Builder) {
	command := func(arguments, meaning string) {
		fmt.Fprintf(b, "  %s%s\n        %s\n", l.program, arguments, meaning)
	}
	if l.once != "" {
		command("", l.once)
		return
	}
	command("", "run until SIGINT or SIGTERM")
	command(" status", "print the status of the process that runs on this machine, or in this pod, as a table,\n"+
		"        or with -o json as its full report; exits with 1 if something is wrong")
	command(" probe /readyz", "request /readyz or /healthz from that process, as the kubelet does; exits with 1 unless the response is ok")
	if cleanup := l.flags.Lookup(cleanupFlag); cleanup != nil {
		command(" -"+cleanup.Name, cleanup.Usage)
	}
}

func describeAll(b *strings.Builder, settings []*setting) {
	for _, d := range describe(settings) {
		var names []string
		if d.Variable != "" {
			names = append(names, d.Variable)
		}
		for _, name := range d.Flags {
			names = append(names, "-"+name)
		}
		fmt.Fprintf(b, "  %s\n        %s", strings.Join(names, ", "), d.Meaning)
		if d.Default != "" {
			fmt.Fprintf(b, " (default %q)", d.Default)
		}
		b.WriteString("\n")
	}
}

// ownFlags returns the flags that belong to no setting, with their usage.
func (l *loader) ownFlags() map[string]string {
	own := map[string]string{"help": "print this message and exit"}
	settings := slices.Concat(l.settings, l.target)
	l.flags.VisitAll(func(f *flag.Flag) {
		ofSetting := slices.ContainsFunc(settings, func(s *setting) bool { return slices.Contains(s.list("flag"), f.Name) })
		if !ofSetting {
			own[f.Name] = f.Usage
		}
	})
	return own
}
