package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/deploy"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

type object = map[string]any

// Values returns the values of the chart: those of Have, and in their place all that a cluster's
// installation decides. Settings that the chart has no value for, or that it would write in another
// way, are in variables.
func (c *Cluster) Values() (map[string]any, error) {
	for _, name := range append([]cluster.Name{c.Name}, c.Remotes...) {
		if _, err := cluster.ParseName(string(name)); err != nil {
			return nil, err
		}
	}
	known, err := settingsOfChart()
	if err != nil {
		return nil, err
	}
	remotes, own, variables := object{}, object{}, object{}
	for _, remote := range c.Remotes {
		remotes[string(remote)] = object{}
	}
	for name, text := range c.Settings {
		if name == "SEMAPHORE_CLUSTER_NAME" || name == "SEMAPHORE_REMOTES" {
			continue
		}
		remote := RemoteOf(name, c.Remotes)
		if remote == "" {
			if value := known.settings[name].parse(text); value != nil {
				own[known.settings[name].key] = value
			} else {
				variables[name] = text
			}
			continue
		}
		suffix := strings.TrimPrefix(name, remote.Variables()+"_")
		if kind := known.remotes[suffix]; c.isDefault(remote, suffix, text) {
			continue
		} else if value := kind.parse(text); value != nil {
			remotes[string(remote)].(object)[kind.key] = value
		} else {
			variables[name] = text
		}
	}
	program := func(tool string) object { return object{"enabled": slices.Contains(c.Tools, tool)} }
	agents := program(WireGuard)
	agents["cleanup"] = c.Cleanup
	if kept, _ := c.Have["wireguard"].(object); c.PodPrefixes != "" && (kept["podPrefixes"] == nil || kept["podPrefixes"] == "") {
		agents["podPrefixes"] = c.PodPrefixes
	}
	mirror := program(Mirror)
	mirror["leaving"] = append([]cluster.Name{}, c.Leaving...)
	m := c.MultiCluster
	if m == nil {
		m = &MultiCluster{}
	}
	decided := object{
		"cluster": string(c.Name), "remotes": remotes, "settings": own, "variables": variables,
		"image": image(c.Image), "imagePullSecrets": []any{},
		"wireguard": agents, "serviceMirror": mirror, "policy": program(Policy),
		"relay":  object{"enabled": c.Relay || c.RelayAlone, "agents": !c.RelayAlone},
		"mcs":    object{"enabled": c.MultiCluster != nil, "crds": m.CRDs, "coreDNS": object{"serviceAccount": m.DNS.Name, "namespace": m.DNS.Namespace}},
		"calico": object{"pools": c.Pools.String()},
	}
	if c.PullSecret != "" {
		decided["imagePullSecrets"] = []any{object{"name": c.PullSecret}}
		if kept, _ := c.Have["imagePullSecrets"].([]any); len(kept) > 0 && reflect.DeepEqual(kept[0], object{"name": c.PullSecret}) {
			decided["imagePullSecrets"] = kept // with further ones
		}
	}
	return plain(merge(c.Have, decided))
}

// whole are the values that are replaced as they are: of others keys are kept that aren't decided here.
var whole = []string{"remotes", "settings", "variables"}

func merge(have, decided object) object {
	merged := object{}
	maps.Copy(merged, have)
	for key, value := range decided {
		kept, had := have[key].(object)
		if value, is := value.(object); is && had && !slices.Contains(whole, key) {
			merged[key] = merge(kept, value)
			continue
		}
		merged[key] = value
	}
	return merged
}

// plain returns values as Helm reads them from a file or a release.
func plain(values object) (object, error) {
	text, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	var all object
	err = json.Unmarshal(text, &all)
	return all, err
}

// image splits the name of an image.
func image(name string) object {
	repository, tag, digest := withTag(name), "", ""
	if before, after, pinned := strings.Cut(repository, "@"); pinned {
		repository, digest = before, after
	}
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') { // A port isn't a tag.
		repository, tag = repository[:i], repository[i+1:]
	}
	if tag != "" && digest != "" { // The chart has either of them.
		tag, digest = tag+"@"+digest, ""
	}
	return object{"registry": "", "repository": repository, "tag": tag, "digest": digest}
}

// RemoteOf returns the remote whose setting a variable is: of those whose names begin alike the longest; empty:
// it is a cluster's own.
func RemoteOf(variable string, remotes []cluster.Name) (found cluster.Name) {
	for _, remote := range remotes {
		if len(remote) > len(found) && strings.HasPrefix(variable, remote.Variables()+"_") {
			found = remote
		}
	}
	return found
}

// isDefault reports whether the chart sets a variable by itself: where the credentials are that
// semaphorectl hands over.
func (c *Cluster) isDefault(remote cluster.Name, suffix, text string) bool {
	switch {
	case c.Settings[remote.Variables()+"_KUBECONFIG"] != "":
		return false
	case suffix == "TOKEN_FILE":
		return text == path.Join(credentials, string(remote)+".token")
	case suffix == "CA_FILE":
		return text == path.Join(credentials, string(remote)+".ca.crt") && c.Settings[remote.Variables()+"_CA_URL"] == ""
	}
	return false
}

const credentials = "/etc/semaphore/remotes"

// known are the values of settings: of a cluster by their variables, and of each remote by what
// follows its name.
type known struct{ settings, remotes map[string]kind }

// kind is the key and the type of a value.
type kind struct{ key, of string }

// settingsOfChart reads the schema of the chart's values.
func settingsOfChart() (known, error) {
	content, err := deploy.Files.ReadFile("chart/values.schema.json")
	if err != nil {
		return known{}, err
	}
	type properties map[string]struct {
		Type any `json:"type"`
	}
	var schema struct {
		Properties struct {
			Settings struct{ Properties properties }
			Remotes  struct {
				AdditionalProperties struct{ Properties properties }
			}
		}
	}
	if err := json.Unmarshal(content, &schema); err != nil {
		return known{}, fmt.Errorf("the schema of the chart's values: %w", err)
	}
	capitals := regexp.MustCompile("[A-Z]+")
	kinds := func(prefix string, of properties) map[string]kind {
		all := map[string]kind{}
		for key, value := range of {
			// As the chart's template semaphore.variable.
			of, _ := value.Type.(string)
			all[prefix+strings.ToUpper(capitals.ReplaceAllString(key, "_$0"))] = kind{key, of}
		}
		return all
	}
	return known{kinds("SEMAPHORE_", schema.Properties.Settings.Properties), kinds("", schema.Properties.Remotes.AdditionalProperties.Properties)}, nil
}

// parse returns the value for a text; nil: there is none that the chart writes as this text, except for
// blanks in lists.
func (k kind) parse(text string) any {
	switch {
	case k.key != "" && k.of == "array" && text == "":
		return []any{}
	case k.key == "" || text == "":
		return nil
	case k.of == "boolean" && (text == "true" || text == "false"):
		return text == "true"
	case k.of == "integer":
		if n, err := strconv.Atoi(text); err == nil && strconv.Itoa(n) == text {
			return n
		}
		return nil
	case k.of == "boolean":
		return nil
	case k.of == "array":
		var items []any
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, strings.TrimSpace(item))
		}
		return items
	}
	return text
}
