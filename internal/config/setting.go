package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// prefix is that of all variables.
const prefix = "SEMAPHORE"

// setting is one field of a configuration: its text, from whichever source, and a pointer
// to the parsed value. envconfig only reads the texts: it would stop at the first one that
// doesn't parse.
type setting struct {
	variable string // its name in the environment
	origin   string // the variable, flag or key of the file, for errors
	text     string
	set      bool // text is not a default
	field    any  // a pointer
	tag      reflect.StructTag
}

// inspect lists the fields of a struct that vars points to, with the variables that
// envconfig derives from them. envconfig's own list needs text/template, which would keep
// all methods of all types in the binary.
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
	fields := make([]reflect.StructField, len(settings))
	for i, s := range settings {
		fields[i] = reflect.StructField{
			Name: fmt.Sprintf("Text%d", i), Type: reflect.TypeFor[*string](), Tag: reflect.StructTag(fmt.Sprintf("envconfig:%q", s.variable)),
		}
	}
	texts := reflect.New(reflect.StructOf(fields))
	if err := envconfig.Process("", texts.Interface()); err != nil {
		panic(fmt.Sprintf("read environment: %v", err)) // strings always parse
	}
	for i, s := range settings {
		if text, _ := texts.Elem().Field(i).Interface().(*string); text != nil && (*text != "" || s.tag.Get("empty") == "off") {
			s.write(*text, s.variable)
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

// decode sets the fields of settings. A field without a text and a default stays as it
// is.
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
	case *uint32:
		*field = f.mark(s.origin, text)
	case *int64:
		*field = f.bytes(s.origin, text, s.list("range"))
	case *time.Duration:
		*field = f.duration(s.origin, text)
	case *[]string:
		*field = f.clusters(s.origin, text)
	case *[]netip.Prefix:
		*field = f.subnets(s.origin, text, s.tag.Get("holds"))
	}
}
