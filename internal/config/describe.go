package config

import (
	"strings"
	"time"
)

// Kind is the type of a setting's value.
type Kind int

// The kinds. Prefixes, ClusterNames and NamespaceNames are lists.
const (
	Text Kind = iota
	Boolean
	Number
	Size
	Duration
	Mark
	MTUOrAuto
	Prefixes
	ClusterNames
	NamespaceNames
)

// Description is what the documentation says about one setting.
type Description struct {
	// Variable is its environment variable; empty for a setting that is only a flag.
	Variable string
	// Flags are its flags, without the dash.
	Flags []string
	// Key is its section and key in the JSON file, as in "remote.podSubnet".
	Key     string
	Default string
	// Least and Most bound a number; both are empty where there is no bound.
	Least, Most string
	Meaning     string
	Kind        Kind
	// OneOf are the allowed values of a text, Syntax is the tag "is".
	OneOf  []string
	Syntax string
}

// Program is one program with its settings, without those of its remotes.
type Program struct {
	Name     string
	Settings []Description
}

// Programs returns the settings of all programs, in the order of -help.
func Programs() []Program {
	all := make([]Program, 0, len(programs))
	for _, p := range programs {
		var settings []*setting
		for _, vars := range p.vars() {
			settings = append(settings, inspect(prefix, vars)...)
		}
		all = append(all, Program{Name: p.name, Settings: describe(settings)})
	}
	return all
}

// RemoteSettings returns the settings of each remote, with <NAME> in place of its name.
func RemoteSettings() []Description {
	return describe(remoteSettings(groupPrefix("<name>"), new(Remote)))
}

// TargetFlags returns the flags of the original policy tool.
func TargetFlags() []Description { return describe(inspect("", new(targetVars))) }

// programs are the structs whose fields are the settings of each program.
var programs = []struct {
	name string
	vars func() []any
}{
	{"semaphore-wireguard", func() []any { return []any{new(Wireguard), new(agentSources), new(sources)} }},
	{"semaphore-service-mirror", func() []any { return []any{new(Mirror), new(sources)} }},
	{"semaphore-policy", func() []any { return []any{new(Policy), new(sources)} }},
	{"semaphore-relay", func() []any { return []any{new(Relay), new(sources)} }},
	{"semaphore-tokens", func() []any { return []any{new(Tokens), new(sources)} }},
}

func describe(settings []*setting) []Description {
	all := make([]Description, 0, len(settings))
	for _, s := range settings {
		d := Description{
			Flags: s.list("flag"), Key: s.tag.Get("file"), Default: s.tag.Get("default"), Meaning: s.tag.Get("desc"),
		}
		if strings.HasPrefix(s.variable, prefix) {
			d.Variable = s.variable
		}
		d.Kind, d.OneOf, d.Syntax = s.kind(), s.list("oneof"), s.tag.Get("is")
		if bounds := s.list("range"); len(bounds) == 2 {
			d.Least, d.Most = bounds[0], bounds[1]
		}
		all = append(all, d)
	}
	return all
}

func (s *setting) kind() Kind {
	switch s.field.(type) {
	case *bool:
		return Boolean
	case *int:
		return Number
	case *Bytes:
		return Size
	case *time.Duration:
		return Duration
	case *uint32:
		return Mark
	case *MTU:
		return MTUOrAuto
	case *Subnets:
		return Prefixes
	case *Names:
		return ClusterNames
	case *Namespaces:
		return NamespaceNames
	}
	return Text
}
