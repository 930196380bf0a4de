package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The JSON file of the original tools. semaphore-wireguard calls its sections
// local and remotes, semaphore-service-mirror localCluster, remoteClusters and
// global; all programs here read both forms. Keys are matched without regard
// to case, as those tools do. The keys remoteCAPath, remoteCASHA256, nodeSubnets,
// staleAfter, those that begin with max, and wgMaxPeers are ours.

// fileKey is a key of an object of the file: what it sets, and how its value
// is written.
type fileKey struct {
	to     *setting
	decode func(json.RawMessage) (string, error)
}

// readFile takes the clusters from the file that a setting names.
func (l *loader) readFile(file *setting) error {
	path := *file.value
	content, err := os.ReadFile(path)
	if err != nil {
		l.faults.add(file.origin, "%w", err)
		return nil
	}
	return l.parseFile(path, content)
}

func (l *loader) parseFile(path string, content []byte) error {
	in := " in " + path
	var document map[string]json.RawMessage
	if err := json.Unmarshal(content, &document); err != nil {
		l.faults.add(path, "not the JSON object that it should be: %s", located(err, content))
		return nil
	}
	var remotesKey string
	var remotes []json.RawMessage
	for _, key := range slices.Sorted(maps.Keys(document)) {
		switch value := document[key]; strings.ToLower(key) {
		case "local", "localcluster":
			l.parseLocal(key, in, value)
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
			l.parseGlobal(key, in, value)
		default:
			l.warnings = append(l.warnings, key+in+": unknown, and has no effect")
		}
	}
	if l.local == "" {
		l.faults.add("local.name"+in, "required: the name of this cluster")
	} else {
		l.faults.valid("local.name"+in, l.local, validation.IsDNS1123Label)
	}
	if remotesKey == "" {
		l.faults.add("remotes"+in, "required: at least one remote cluster")
	}
	for i, value := range remotes {
		if err := l.parseRemote(fmt.Sprintf("%s[%d]", remotesKey, i), in, value); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) parseLocal(key, in string, value json.RawMessage) {
	name := setting{value: &l.local}
	kubeconfig := setting{value: new(string)}
	l.parseObject(key, in, value, map[string]fileKey{
		"name":           {&name, text},
		"kubeConfigPath": {&kubeconfig, text},
	})
	// A flag or a variable wins over the file.
	if s := l.setting(&l.common.Kubeconfig); kubeconfig.set && !s.set {
		s.write(*kubeconfig.value, kubeconfig.origin)
	}
}

func (l *loader) parseGlobal(key, in string, value json.RawMessage) {
	if l.fileGlobals == nil {
		return // it is another program's
	}
	found := map[string]*setting{}
	// The original could skip its first comparison with the cluster; we never do.
	keys := map[string]fileKey{"serviceSync": {new(setting), ignored}, "endpointSliceSync": {new(setting), ignored}}
	for name := range l.fileGlobals {
		found[name] = &setting{value: new(string)}
		keys[name] = fileKey{found[name], text}
	}
	l.parseObject(key, in, value, keys)
	for name, field := range l.fileGlobals {
		if s := l.setting(field); found[name].set && !s.set {
			s.write(*found[name].value, found[name].origin)
		}
	}
}

func (l *loader) parseRemote(path, in string, value json.RawMessage) error {
	var name string
	remote, err := newRawRemote("", path+in, func(string) (string, bool) { return "", false })
	if err != nil {
		return err
	}
	v := &remote.vars
	nameSetting := setting{value: &name, origin: path + ".name" + in}
	ok := l.parseObject(path, in, value, map[string]fileKey{
		"name":              {&nameSetting, text},
		"kubeConfigPath":    {remote.of(&v.Kubeconfig), text},
		"remoteAPIURL":      {remote.of(&v.API.URL), text},
		"remoteCAURL":       {remote.of(&v.CA.URL), text},
		"remoteCAPath":      {remote.of(&v.CA.File), text},
		"remoteCASHA256":    {remote.of(&v.CA.SHA256), text},
		"remoteSATokenPath": {remote.of(&v.TokenFile), text},
		"podSubnet":         {remote.of(&v.PodSubnets), text},
		"nodeSubnets":       {remote.of(&v.NodeSubnets), text},
		"resyncPeriod":      {remote.of(&v.ResyncPeriod), duration},
		"staleAfter":        {remote.of(&v.StaleAfter), duration},
		"maxAnswer":         {remote.of(&v.MaxAnswer), text},
		"maxObjects":        {remote.of(&v.MaxObjects), number},
		"maxServices":       {remote.of(&v.MaxServices), number},
		"maxSlices":         {remote.of(&v.MaxSlices), number},
		"maxAddresses":      {remote.of(&v.MaxAddresses), number},
		"maxSets":           {remote.of(&v.MaxSets), number},
		"wgMaxPeers":        {remote.of(&v.WG.MaxPeers), number},
		"wgListenPort":      {remote.of(&v.WG.ListenPort), number},
		"wgDeviceMTU":       {remote.of(&v.WG.MTU), number},
		"servicePrefix":     {remote.of(&v.ServicePrefix), text},
	})
	if !ok {
		return nil
	}
	if name == "" {
		l.faults.add(path+".name"+in, "required: the name of the remote cluster")
		return nil
	}
	remote.name, remote.nameFrom = name, nameSetting.origin
	l.remotes = append(l.remotes, remote)
	return nil
}

// parseObject writes the settings of an object's keys. Those that it doesn't
// have learn where they would be.
func (l *loader) parseObject(path, in string, value json.RawMessage, keys map[string]fileKey) bool {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		l.faults.add(path+in, "not a JSON object")
		return false
	}
	for name, key := range keys {
		key.to.origin = path + "." + name + in
	}
	for _, written := range slices.Sorted(maps.Keys(object)) {
		origin := path + "." + written + in
		key, known := keys[written]
		for name := range keys {
			if !known && strings.EqualFold(name, written) {
				key = keys[name]
			}
		}
		if key.to == nil {
			l.warnings = append(l.warnings, origin+": unknown, and has no effect")
			continue
		}
		content, err := key.decode(object[written])
		if err != nil {
			l.faults.add(origin, "%w", err)
		} else if content != "" {
			key.to.write(content, origin)
		}
	}
	return true
}

// The forms of values. Nothing, null and 0 leave a setting at its default, as
// they do in the original tools.

func text(value json.RawMessage) (string, error) {
	var s *string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", errors.New("not a text in quotes")
	}
	if s == nil {
		return "", nil
	}
	return *s, nil
}

func number(value json.RawMessage) (string, error) {
	var n *int
	if err := json.Unmarshal(value, &n); err != nil {
		return "", errors.New("not a whole number")
	}
	if n == nil || *n == 0 {
		return "", nil
	}
	return strconv.Itoa(*n), nil
}

// duration is a text such as "10s", or a number of nanoseconds.
func duration(value json.RawMessage) (string, error) {
	if s, err := text(value); err == nil {
		return s, nil
	}
	var n time.Duration
	if err := json.Unmarshal(value, &n); err != nil {
		return "", errors.New(`neither a duration such as "10m" nor a number of nanoseconds`)
	}
	return n.String(), nil
}

func ignored(json.RawMessage) (string, error) { return "", nil }

// located adds the line to an error about JSON.
func located(err error, content []byte) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err.Error()
	}
	before := content[:min(int(syntax.Offset), len(content))]
	return fmt.Sprintf("line %d: %v", 1+bytes.Count(before, []byte("\n")), err)
}
