package config

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// prefix starts the names of all variables.
const prefix = "SEMAPHORE"

// setting is one field of a configuration: its text, wherever that comes from, and
// what it is made of that. envconfig itself would stop at the first text that has no
// meaning.
type setting struct {
	variable string // its name in the environment
	origin   string // what faults are reported against: the variable, a flag, or a key of the file
	text     string
	set      bool // text was written by the operator
	field    any  // a pointer
	tag      reflect.StructTag
}

// inspect lists the fields of a struct that vars points to, under the names that
// envconfig gives them.
func inspect(prefix string, vars any) []*setting {
	var found []*setting
	// The template is envconfig's way of handing out what it knows.
	list := template.Must(template.New("").Funcs(template.FuncMap{"add": func(info any) string {
		v := reflect.ValueOf(info)
		field, isField := v.FieldByName("Field").Interface().(reflect.Value)
		tag, isTag := v.FieldByName("Tags").Interface().(reflect.StructTag)
		if isField && isTag {
			name := v.FieldByName("Key").String()
			found = append(found, &setting{variable: name, origin: name, field: field.Addr().Interface(), tag: tag})
		}
		return ""
	}}).Parse("{{range .}}{{add .}}{{end}}"))
	if err := envconfig.Usaget(prefix, vars, io.Discard, list); err != nil {
		panic(fmt.Sprintf("list the settings of %T: %v", vars, err)) // It is one of our own.
	}
	return found
}

// lookUp takes the texts of the environment.
func lookUp(settings []*setting) {
	for _, s := range settings {
		if text, ok := os.LookupEnv(s.variable); ok && (text != "" || s.tag.Get("empty") == "off") {
			s.write(text, s.variable)
		}
	}
}

// write gives a setting its text.
func (s *setting) write(text, origin string) { s.text, s.origin, s.set = text, origin, true }

// settingOf returns the setting that a field belongs to, by a pointer to it.
func settingOf(settings []*setting, field any) *setting {
	i := slices.IndexFunc(settings, func(s *setting) bool { return s.field == field })
	return settings[i]
}

// list returns the parts of a tag.
func (s *setting) list(tag string) []string {
	if all := s.tag.Get(tag); all != "" {
		return strings.Split(all, ",")
	}
	return nil
}

// decode sets the fields of settings. Where there is neither a text nor a default it
// leaves what is there.
func decode(f *faults, settings []*setting) {
	for _, s := range settings {
		if !s.set {
			s.text = s.tag.Get("default")
		}
		if s.text == "" && s.tag.Get("required") != "" {
			f.add(s.origin, "required: %s", s.tag.Get("required"))
		}
		if s.set || s.text != "" {
			s.decode(f)
		}
	}
}

func (s *setting) decode(f *faults) {
	text := s.text
	if word := s.tag.Get("zero"); word != "" && strings.EqualFold(text, word) {
		return
	}
	switch field := s.field.(type) {
	case *string:
		if words := s.list("oneof"); words != nil {
			text = f.oneOf(s.origin, text, words)
		}
		*field = f.check(s.origin, text, s.tag.Get("is"))
	case *bool:
		*field = f.boolean(s.origin, text)
	case *int:
		*field = f.integer(s.origin, text, s.list("range"))
	case *int64:
		*field = f.bytes(s.origin, text, s.list("range"))
	case *time.Duration:
		*field = f.duration(s.origin, text)
	case *[]netip.Prefix:
		*field = f.subnets(s.origin, text, s.tag.Get("holds"))
	}
}
