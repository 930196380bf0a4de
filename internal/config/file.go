package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// The JSON file of the original tools. semaphore-wireguard calls its sections
// local and remotes, semaphore-service-mirror localCluster, remoteClusters and
// global; all programs here read both forms. Keys are case-insensitive, as in those
// tools. They are in the tag "file" of the settings, some of which the original tools
// don't have.

// readFile reads the clusters from the file that a setting names.
func (l *loader) readFile(file *setting) {
	content, err := os.ReadFile(file.text)
	if err != nil {
		l.faults.add(file.origin, "%w", err)
		return
	}
	l.parseFile(file.text, content)
}

func (l *loader) parseFile(path string, content []byte) {
	in := " in " + path
	var document map[string]json.RawMessage
	if err := json.Unmarshal(content, &document); err != nil {
		l.faults.add(path, "not a JSON object: %s", located(err, content))
		return
	}
	var remotesKey string
	var remotes []json.RawMessage
	for _, key := range slices.Sorted(maps.Keys(document)) {
		switch value := document[key]; strings.ToLower(key) {
		case "local", "localcluster":
			l.parseObject("local", key, in, value, l.settings)
		case "remotes", "remoteclusters":
			if remotesKey != "" {
				l.faults.add(key+in, "set together with %s", remotesKey)
				continue
			}
			remotesKey = key
			if err := json.Unmarshal(value, &remotes); err != nil || len(remotes) == 0 {
				l.faults.add(key+in, "not a list of at least one remote cluster")
			}
		case "global":
			l.parseObject("global", key, in, value, l.settings)
		default:
			l.warnings = append(l.warnings, key+in+": unknown, and has no effect")
		}
	}
	if l.setting(&l.base.ClusterName).text == "" {
		l.faults.add("local.name"+in, "required: the name of this cluster")
	}
	if remotesKey == "" {
		l.faults.add("remotes"+in, "required: at least one remote cluster")
	}
	for i, value := range remotes {
		l.parseRemote(fmt.Sprintf("%s[%d]", remotesKey, i), in, value)
	}
}

func (l *loader) parseRemote(path, in string, value json.RawMessage) {
	name := setting{field: new(string), origin: path + ".name" + in, tag: `file:"remote.name"`}
	remote := newRawRemote("", name.origin)
	for _, s := range remote.settings {
		s.origin = path + "." + strings.TrimPrefix(s.tag.Get("file"), "remote.") + in
	}
	if !l.parseObject("remote", path, in, value, append([]*setting{&name}, remote.settings...)) {
		return
	}
	if name.text == "" {
		l.faults.add(name.origin, "required: the name of the remote cluster")
		return
	}
	remote.Name, remote.nameFrom = name.text, name.origin
	l.remotes = append(l.remotes, remote)
}

// parseObject sets the settings of a section's keys, except those that a flag or variable
// has set. It returns false if the value isn't an object.
func (l *loader) parseObject(section, path, in string, value json.RawMessage, settings []*setting) bool {
	of := func(s *setting) bool { return strings.HasPrefix(s.tag.Get("file"), section+".") }
	if !slices.ContainsFunc(settings, of) {
		return true // a section of another program
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		l.faults.add(path+in, "not a JSON object")
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		origin := path + "." + key + in
		i := slices.IndexFunc(settings, func(s *setting) bool { return strings.EqualFold(s.tag.Get("file"), section+"."+key) })
		if i < 0 {
			// The original tool could skip its initial sync; these programs never do.
			if skips := []string{"global.servicesync", "global.endpointslicesync"}; !slices.Contains(skips, strings.ToLower(section+"."+key)) {
				l.warnings = append(l.warnings, origin+": unknown, and has no effect")
			}
			continue
		}
		s := settings[i]
		content, err := text(s.field, object[key])
		switch {
		case err != nil:
			l.faults.add(origin, "%w", err)
		case content != "" && (section == "remote" || !s.set):
			s.write(content, origin)
		}
	}
	return true
}

// text returns the text of a setting's value. Empty, null and 0 leave a setting at its
// default, as in the original tools.
func text(field any, value json.RawMessage) (string, error) {
	var content, none any
	var fault string
	switch field.(type) {
	case *int, *MTU:
		content, none, fault = new(int), "0", "not a whole number"
	case *bool:
		content, fault = new(bool), "neither true nor false"
	case *time.Duration:
		// A text such as "10s", or a number of nanoseconds.
		content, fault = new(time.Duration), `neither a duration such as "10m" nor a number of nanoseconds`
		if bytes.HasPrefix(value, []byte(`"`)) {
			content = new(string)
		}
	default:
		content, fault = new(string), "not a text in quotes"
	}
	if string(value) == "null" {
		return "", nil
	}
	if json.Unmarshal(value, content) != nil {
		return "", errors.New(fault)
	}
	if text := fmt.Sprint(reflect.ValueOf(content).Elem()); text != none {
		return text, nil
	}
	return "", nil
}

// located adds the line number to a JSON syntax error.
func located(err error, content []byte) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err.Error()
	}
	before := content[:min(int(syntax.Offset), len(content))]
	return fmt.Sprintf("line %d: %v", 1+bytes.Count(before, []byte("\n")), err)
}
