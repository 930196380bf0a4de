package config

import (
	"cmp"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// prefix is that of all variables.
const prefix = "SEMAPHORE"

// setting is one field of a configuration: its text, from whichever source, and a pointer
// to the value.
type setting struct {
	variable string // its name in the environment
	origin   string // the variable, flag or key of the file, for errors
	text     string
	set      bool // text is not a default
	field    any  // a pointer
	tag      reflect.StructTag
}

// inspect lists the fields of a struct that vars points to, with the variables that
// envconfig derives from them. envconfig's own list needs text/template, which keeps all
// methods of all types in a binary: it would make semaphore-wireguard larger by 29 %.
func inspect(prefix string, vars any) []*setting {
	var found []*setting
	v := reflect.ValueOf(vars).Elem()
	for i := range v.NumField() {
		of, field := v.Type().Field(i), v.Field(i).Addr().Interface()
		name := cmp.Or(of.Tag.Get("envconfig"), of.Name)
		if prefix != "" {
			name = prefix + "_" + name
		}
		name = strings.ToUpper(name)
		switch {
		case of.Tag.Get("ignored") == "true":
		case of.Anonymous:
			found = append(found, inspect(prefix, field)...)
		case of.Type.Kind() == reflect.Struct:
			found = append(found, inspect(name, field)...)
		default:
			found = append(found, &setting{variable: name, origin: name, field: field, tag: of.Tag})
		}
	}
	return found
}

// lookUp reads the texts from the environment.
func lookUp(settings []*setting) {
	for _, s := range settings {
		if text, found := os.LookupEnv(s.variable); found && (text != "" || s.tag.Get("empty") == "off") {
			s.write(text, s.variable)
		}
	}
}

// write sets the text of a setting.
func (s *setting) write(text, origin string) { s.text, s.origin, s.set = text, origin, true }

// settingOf returns the setting of a field, by a pointer to the field.
func settingOf(settings []*setting, field any) *setting {
	i := slices.IndexFunc(settings, func(s *setting) bool { return s.field == field })
	return settings[i]
}

// list returns the comma-separated parts of a tag.
func (s *setting) list(tag string) []string {
	if all := s.tag.Get(tag); all != "" {
		return strings.Split(all, ",")
	}
	return nil
}

// fill sets the fields of structs from the texts and defaults of their settings.
//
// envconfig stops at the first text that it can't parse: that one is reported and left out, and
// the others are processed again.
func fill(f *faults, prefix string, settings []*setting, structs ...any) {
	defer environment(f, settings)()
	var parse *envconfig.ParseError
	for _, vars := range structs {
		for errors.As(envconfig.Process(prefix, vars), &parse) {
			i := slices.IndexFunc(settings, func(s *setting) bool { return s.variable == parse.KeyName && s.set })
			wrong := settings[i]                                       // a test parses the defaults
			_ = os.Unsetenv(wrong.variable)                            // It is set.
			items, isList := parse.Err.(interface{ Unwrap() []error }) //nolint:errorlint // of a type of ours
			if !isList {
				wrong.refuse(f)
				settings = slices.Concat(settings[:i], settings[i+1:])
				continue
			}
			for _, err := range items.Unwrap() {
				f.add(wrong.origin, "%w", err)
			}
		}
	}
	for _, s := range settings {
		switch hasText := s.set || s.tag.Get("default") != ""; {
		case hasText:
			s.check(f)
		case s.tag.Get("required") != "":
			f.add(s.origin, "required: %s", s.tag.Get("required"))
		}
	}
}

// environment puts the texts into the environment, where envconfig reads them, and returns
// a function that restores it. The texts of flags and of the file replace variables; the
// variables of others are removed, because envconfig also takes a name without its prefix,
// such as KUBECONFIG.
func environment(f *faults, settings []*setting) (restore func()) {
	before := os.Environ()
	os.Clearenv()
	for _, s := range settings {
		if !s.set {
			continue
		}
		if err := os.Setenv(s.variable, s.text); err != nil {
			f.add(s.origin, "%w", err) // of the file, which can have null characters
		}
	}
	return func() {
		os.Clearenv()
		for _, entry := range before {
			name, value, _ := strings.Cut(entry, "=")
			_ = os.Setenv(name, value) // It was set.
		}
	}
}

// refuse reports the text of a setting, and unsets the field.
func (s *setting) refuse(f *faults) {
	limits := strings.Join(s.list("range"), " to ")
	expected := "a number from " + limits
	switch s.field.(type) {
	case *bool:
		f.add(s.origin, "%q is neither true nor false", s.text)
		return
	case *time.Duration:
		expected = "a duration such as 30s, 10m or 1h, or 0"
	case *uint32:
		expected = "a firewall mark such as 0x1073, or 0"
	case *Bytes:
		expected = "a number of bytes such as 64Mi, from " + limits
	}
	f.add(s.origin, "%q is not %s", s.text, expected)
	reflect.ValueOf(s.field).Elem().SetZero()
}

// check checks a field by its tags, and puts its value into canonical form.
func (s *setting) check(f *faults) {
	fits := true
	switch field := s.field.(type) {
	case *string:
		if words := s.list("oneof"); words != nil {
			*field = f.oneOf(s.origin, *field, words)
		}
		*field = f.check(s.origin, *field, s.tag.Get("is"))
	case *int:
		// envconfig reads 010 as octal.
		octal := strings.HasPrefix(s.text, "0") && s.text != "0"
		fits = !octal && within(*field, s.list("range"))
	case *MTU:
		fits = *field == 0 || within(*field, s.list("range"))
	case *Bytes:
		fits = within(*field, s.list("range"))
	case *uint32:
		if *field&kubeMarks != 0 {
			f.add(s.origin, "%#x has a bit by which kube-proxy masquerades or drops packets (0x4000, 0x8000)", *field)
		}
	case *time.Duration:
		fits = *field >= 0
	case *Subnets:
		*field = f.fit(s.origin, *field, s.tag.Get("holds"))
	}
	if !fits {
		s.refuse(f)
	}
}
