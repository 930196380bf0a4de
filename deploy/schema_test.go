package deploy_test

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// TestSchema compares the schema of the chart's values with the settings of the programs.
func TestSchema(t *testing.T) {
	const file = "chart/values.schema.json"
	text, err := json.MarshalIndent(schema(settings(t)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want := string(text) + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v: run make manifests (-settings +schema):\n%s", err, diff)
	}
}

// TestKeys checks which keys set which variables, in the schema as in the template semaphore.variable.
func TestKeys(t *testing.T) {
	v := settings(t)
	variable := func(key string) string {
		return strings.ToUpper(regexp.MustCompile("[A-Z]+").ReplaceAllString(key, "_$0"))
	}
	for key, d := range v.remotes {
		if got := remotePrefix + variable(key); got != d.Variable {
			t.Errorf("%s of a remote sets %s instead of %s", key, got, d.Variable)
		}
	}
	for key, d := range v.settings {
		if got := prefix + variable(key); got != d.Variable {
			t.Errorf("%s sets %s instead of %s", key, got, d.Variable)
		}
	}
	for key, want := range map[string]string{
		"podSubnets": "POD_SUBNETS", "apiURL": "API_URL", "caSHA256": "CA_SHA256", "wgListenPort": "WG_LISTEN_PORT", "wgMTU": "WG_MTU", "wgMaxAllowedIPs": "WG_MAX_ALLOWED_IPS",
	} {
		if got := v.remotes[key].Variable; got != remotePrefix+want {
			t.Errorf("%s sets %q", key, got)
		}
	}
	if got := v.settings["logLevel"].Variable; got != "SEMAPHORE_LOG_LEVEL" {
		t.Errorf("logLevel sets %q", got)
	}
	for _, key := range []string{"nodeName", "podName", "probeSocket", "clusterName", "remotes", "wgEngine", "listenAuth", "remotesFrom", "wgPodCIDRs"} {
		if d, has := v.settings[key]; has {
			t.Errorf("%s sets %s, which is set elsewhere", key, d.Variable)
		}
	}
}

// values are the settings of internal/config by their keys in the chart's values.
type values struct{ settings, remotes map[string]config.Description }

const prefix = "SEMAPHORE_"

// fixed finds the variables that templates set.
var fixed = regexp.MustCompile(`- name: (SEMAPHORE_\w+)\n +(?:value:|valueFrom:\n +fieldRef:)`)

// settings returns the settings that values can set: all but those that the templates set,
// and those that cluster and remotes set.
func settings(t *testing.T) values {
	t.Helper()
	v := values{settings: map[string]config.Description{}, remotes: map[string]config.Description{}}
	elsewhere := map[string]bool{"SEMAPHORE_CLUSTER_NAME": true, "SEMAPHORE_REMOTES": true, "SEMAPHORE_CLUSTERS_CONFIG": true, "SEMAPHORE_KUBECONFIG": true}
	err := fs.WalkDir(os.DirFS("chart/templates"), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile("chart/templates/" + path)
		for _, found := range fixed.FindAllStringSubmatch(string(content), -1) {
			elsewhere[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range config.Programs() {
		for _, d := range p.Settings {
			if !elsewhere[d.Variable] && d.Variable != "" {
				v.settings[key(strings.TrimPrefix(d.Variable, prefix))] = d
			}
		}
	}
	for _, d := range config.RemoteSettings() {
		v.remotes[key(strings.TrimPrefix(d.Variable, remotePrefix))] = d
	}
	return v
}

const remotePrefix = prefix + "REMOTE_<NAME>_"

// words are those that aren't written like others in names of values.
var words = map[string]string{"API": "API", "URL": "URL", "CA": "CA", "MTU": "MTU", "IPS": "IPs", "CIDRS": "CIDRs", "SHA256": "SHA256", "HTTP": "HTTP"}

// key returns the key of a variable in values, as podSubnets for POD_SUBNETS.
func key(variable string) string {
	var b strings.Builder
	for i, word := range strings.Split(variable, "_") {
		switch special := words[word]; {
		case i == 0:
			b.WriteString(strings.ToLower(word))
		case special != "":
			b.WriteString(special)
		default:
			b.WriteString(word[:1] + strings.ToLower(word[1:]))
		}
	}
	return b.String()
}

type object = map[string]any

// closed returns the schema of an object without other keys.
func closed(description string, properties object, required ...string) object {
	o := object{"type": "object", "properties": properties, "additionalProperties": false}
	if description != "" {
		o["description"] = description
	}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// schema returns values.schema.json.
func schema(v values) object {
	boolean, text, free := object{"type": "boolean"}, object{"type": "string"}, object{"type": "object"}
	labels := object{"type": "object", "additionalProperties": text}
	list := object{"type": "array", "items": free}
	others := func(own ...string) object {
		names := object{"not": object{"enum": own}, "description": "none of those that the chart sets"}
		return object{"type": "object", "additionalProperties": text, "propertyNames": names}
	}
	named := func(fields ...string) object {
		properties := object{}
		for _, field := range fields {
			properties[field] = text
		}
		return object{"type": "array", "items": object{"type": "object", "required": fields, "properties": properties}}
	}
	workload := func(more object) object {
		properties := object{
			"resources": free, "nodeSelector": labels, "tolerations": list, "affinity": free,
			"topologySpreadConstraints": list, "priorityClassName": text, "enabled": boolean,
			"podAnnotations": others("kubectl.kubernetes.io/default-container"),
			"podLabels":      others("app.kubernetes.io/name", "app.kubernetes.io/part-of"),
			"extraEnv":       named("name"), "extraVolumes": named("name"), "extraVolumeMounts": named("name", "mountPath"),
		}
		maps.Copy(properties, more)
		return closed("", properties)
	}
	secret := object{"type": "string", "minLength": 1}
	replicas := object{"type": "integer", "minimum": 1, "maximum": 9}
	all := object{}
	for key, d := range v.settings {
		all[key] = typeOf(d)
	}
	remote := object{}
	for key, d := range v.remotes {
		remote[key] = typeOf(d)
	}
	one := closed("", remote, "podSubnets", "wgListenPort")
	one["anyOf"] = []object{{"required": []string{"apiURL"}}, {"required": []string{"kubeconfig"}}}
	name := object{"pattern": clusterName, "maxLength": 52, "not": object{"enum": []string{"local", "global", "gl"}}}
	schema := closed("", object{
		"global":   free,
		"cluster":  object{"type": "string", "description": "name of this cluster", "pattern": clusterName, "maxLength": 52},
		"remotes":  object{"type": "object", "minProperties": 1, "propertyNames": name, "additionalProperties": one},
		"settings": closed("settings of the programs", all),
		"variables": object{
			"type": "object", "additionalProperties": text, "propertyNames": object{"pattern": `^[-._a-zA-Z][-._a-zA-Z0-9]*$`},
			"description": "further environment variables of all programs",
		},
		"calico": closed("", object{"pools": object{"enum": []string{"", "projectcalico.org/v3", "crd.projectcalico.org/v1"}}}),
		"image": closed("", object{
			"registry": text, "repository": object{"type": "string", "minLength": 1}, "tag": text,
			"digest":     object{"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
			"pullPolicy": object{"enum": []string{"", "Always", "IfNotPresent", "Never"}},
		}),
		"imagePullSecrets": object{"type": "array", "items": closed("", object{"name": secret}, "name")},
		"wireguard": workload(object{
			"podPrefixes": object{"enum": []string{"", "calico", "cilium", "pods", "prefixes"}},
			"networkd":    boolean, "cleanup": boolean, "remotesSecret": secret,
			"engine": closed("", object{"resources": free}),
		}),
		"serviceMirror": workload(object{"replicas": replicas, "remotesSecret": secret, "leaving": object{"type": "array", "items": object{"type": "string", "pattern": clusterName}}}),
		"policy":        workload(object{"replicas": replicas, "remotesSecret": secret}),
		"relay":         workload(object{"replicas": replicas, "agents": boolean, "crd": boolean}),
		"tokens":        workload(nil),
		"mcs": closed("", object{
			"enabled": boolean, "crds": boolean, "coreDNS": closed("", object{"serviceAccount": text, "namespace": text}),
		}),
		"metrics": closed("", object{
			"auth": boolean, "rules": boolean, "dashboards": boolean,
			"podMonitor": closed("", object{
				"enabled": boolean, "labels": labels, "authorization": free,
				"interval": object{"type": "string", "pattern": `^([0-9]+(ms|s|m|h))?$`},
			}),
			"prometheusRule": closed("", object{"enabled": boolean, "labels": labels}),
		}),
		"networkPolicy": closed("", object{"enabled": boolean}),
		"test":          closed("", object{"remote": object{"type": "string", "pattern": `^(.+:[0-9]+)?$`}}),
	}, "cluster", "remotes")
	// Of the versions that Helm knows, the one that all of its releases do.
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	return schema
}

const clusterName = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`

// patterns are those of texts, by the tag "is".
var patterns = map[string]string{
	"https": `^https://[^/]`, "proxy": `^(https?|socks5)://[^/@]+/?$`, "cluster": clusterName, "label": clusterName, "host:port": `:[0-9]+$`, "path": `^/`,
	"subdomain": `^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`,
}

// typeOf returns the schema of a setting.
func typeOf(d config.Description) object {
	o := object{"type": "string", "description": d.Meaning}
	switch d.Kind {
	case config.Boolean:
		o["type"] = "boolean"
	case config.Number:
		o["type"], o["minimum"], o["maximum"] = "integer", json.Number(d.Least), json.Number(d.Most)
	case config.Size:
		o["type"], o["minimum"], o["pattern"] = []string{"string", "integer"}, 0, `^[0-9]+([kMG]i?)?$`
	case config.MTUOrAuto:
		o["type"], o["pattern"], o["minimum"], o["maximum"] = []string{"string", "integer"}, `^auto$`, json.Number(d.Least), json.Number(d.Most)
	case config.Duration:
		o["type"], o["pattern"], o["minimum"], o["maximum"] = []string{"string", "integer"}, `^(0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$`, 0, 0
	case config.Mark:
		o["type"], o["pattern"], o["minimum"] = []string{"string", "integer"}, `^(0x[0-9a-fA-F]+|[0-9]+)$`, 0
	case config.Prefixes:
		o["type"], o["items"] = "array", object{"type": "string", "pattern": `^[0-9a-fA-F.:]+/[0-9]{1,3}$`}
	case config.ClusterNames:
		o["type"], o["items"] = "array", object{"type": "string", "pattern": clusterName}
	case config.NamespaceNames:
		o["type"], o["items"] = "array", object{"type": "string", "pattern": `^([a-z0-9]([-a-z0-9]*[a-z0-9])?|([a-z0-9][-a-z0-9]*)?\*)$`}
	default:
		switch {
		case len(d.OneOf) > 0:
			o["enum"] = d.OneOf
		case patterns[d.Syntax] != "":
			o["pattern"] = patterns[d.Syntax]
		}
	}
	return o
}
