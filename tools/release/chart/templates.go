package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// component is a component of deploy/ that a condition of the chart adds.
type component struct{ folder, when string }

// template is a file of the chart: a base with its components.
type template struct {
	file, base string
	// values has the values of the base's program, or is empty.
	values     string
	components []component
}

func templates() []template {
	authenticated := component{"authenticated", "$.Values.metrics.auth"}
	var pods []component
	for _, source := range []string{"calico", "cilium", "pods", "prefixes"} {
		pods = append(pods, component{"wireguard/pods/" + source, fmt.Sprintf("eq (default \"\" $.Values.wireguard.podPrefixes) %q", source)})
	}
	return []template{
		{"wireguard", "wireguard", "wireguard", append(pods, authenticated,
			component{"networkd", "$.Values.wireguard.networkd"}, component{"wireguard/cleanup", "$.Values.wireguard.cleanup"},
			component{"wireguard/map", "$.Values.settings.podSubnetsMap"},
			component{"wireguard/relay", "and $.Values.relay.enabled $.Values.relay.agents"})},
		{"relay", "relay", "relay", []component{authenticated}},
		{"service-mirror", "service-mirror", "serviceMirror", []component{authenticated, {"service-mirror/mcs", "$.Values.mcs.enabled"}}},
		{"policy", "policy", "policy", []component{authenticated}},
		{"tokens", "tokens", "tokens", nil},
	}
}

// namespace is that of the bases.
const namespace = "sys-semaphore"

// generator makes templates of objects: it puts tokens in place of what values decide, and
// replaces them in the text, where their indentation is known.
type generator struct {
	tokens   []string       // what they are replaced by, see replace
	defaults map[string]any // what the bases have in these places, by value
}

const mark = "REPLACED-BY-HELM-"

// token returns one for a text.
func (g *generator) token(text string) string {
	g.tokens = append(g.tokens, text)
	return mark + strconv.Itoa(len(g.tokens)-1)
}

// scalar returns a token for an expression.
func (g *generator) scalar(expression string) string { return g.token("{{ " + expression + " }}") }

// field returns a token for a field that exists if the expression has a value.
func (g *generator) field(expression string) string { return g.token("with " + expression) }

// items returns a token for a name of an item that stands for the items of an expression.
func (g *generator) items(expression string) string { return g.token("items " + expression) }

// line is a line with a token.
var line = regexp.MustCompile(`^( *)((?:- )?)(\w+: )` + mark + `(\d+)$`)

// text returns an object as lines of YAML, with the tokens.
func text(o *unstructured.Unstructured) ([]string, error) {
	content, err := yaml.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n"), nil
}

// replace replaces the tokens.
func (g *generator) replace(lines []string) []string {
	var all []string
	for _, l := range lines {
		m := line.FindStringSubmatch(l)
		if m == nil {
			all = append(all, l)
			continue
		}
		n, _ := strconv.Atoi(m[4]) // It matches.
		indentation, dash, key := m[1], m[2], m[3]
		items, isItems := strings.CutPrefix(g.tokens[n], "items ")
		expression, optional := strings.CutPrefix(g.tokens[n], "with ")
		if optional && dash != "" { // Other fields of the item remain without it.
			all, indentation = append(all, indentation+"-"), indentation+"  "
		}
		nindent := func(depth int) string { return "{{- toYaml . | nindent " + strconv.Itoa(depth) + " }}" }
		switch {
		case isItems:
			all = append(all, "{{- with "+items+" }}", indentation+nindent(len(indentation)), "{{- end }}")
		case optional:
			all = append(all, "{{- with "+expression+" }}", indentation+strings.TrimSpace(key), indentation+"  "+nindent(len(indentation)+2), "{{- end }}")
		default:
			all = append(all, indentation+dash+key+g.tokens[n])
		}
	}
	return all
}

// set puts a token in place of a field, whose content is the default of a value.
func (g *generator) set(in map[string]any, key, value string) {
	g.defaults[value] = in[key]
	in[key] = g.field("$.Values." + value)
}

// prepare puts tokens into the objects of a program.
func (g *generator) prepare(o *unstructured.Unstructured, program string) {
	manifests.Walk(o.Object, func(key string, value any) any {
		of, isMap := value.(map[string]any)
		switch {
		case value == namespace:
			return g.scalar("$.Release.Namespace")
		case key == "image" && value == "kube-semaphore":
			return g.scalar(`include "semaphore.image" $`)
		case isMap && (key == "configMapRef" || key == "configMapKeyRef") && of["name"] == "semaphore":
			of["name"] = g.scalar(`include "semaphore.settingsName" $`)
		case isMap && key == "template" && of["spec"] != nil && program != "":
			g.pods(of, program)
		case key == "resourceNames" && fmt.Sprint(value) == "[SEMAPHORE_POD_SUBNETS_MAP]":
			return g.field("list $.Values.settings.podSubnetsMap")
		case key == "replicas" && program != "":
			g.defaults[program+".replicas"] = value
			return g.scalar("$.Values." + program + ".replicas | int64")
		case key == "secretName" && program == "relay":
			return g.scalar("$.Values.wireguard.remotesSecret") // It has those of the agents.
		case key == "secretName" && program != "":
			g.defaults[program+".remotesSecret"] = value
			return g.scalar("$.Values." + program + ".remotesSecret")
		}
		return value
	})
}

// pods puts tokens into a pod template.
func (g *generator) pods(template map[string]any, program string) {
	metadata, spec := template["metadata"].(map[string]any), template["spec"].(map[string]any)
	for key, value := range map[string]string{"labels": "podLabels", "annotations": "podAnnotations"} {
		all := "$.Values." + program + "." + value
		if own, has := metadata[key].(map[string]any); has {
			list := ""
			for _, name := range slices.Sorted(maps.Keys(own)) {
				list += fmt.Sprintf(" %q %q", name, own[name])
			}
			all = "merge (dict) (default dict " + all + ") (dict" + list + ")"
		}
		metadata[key] = g.field(all)
	}
	for _, key := range []string{"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"} {
		if key != "priorityClassName" {
			g.set(spec, key, program+"."+key)
			continue
		}
		g.defaults[program+"."+key] = spec[key]
		spec[key] = g.scalar("$.Values." + program + "." + key)
	}
	spec["imagePullSecrets"] = g.field("$.Values.imagePullSecrets")
	for _, e := range extras {
		if e.list == "volumes" {
			g.extend(spec, e, program)
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := spec[list].([]any)
		for _, c := range containers {
			c := c.(map[string]any)
			c["imagePullPolicy"] = g.field("$.Values.image.pullPolicy")
			if list == "initContainers" {
				g.set(c, "resources", program+"."+c["name"].(string)+".resources")
				continue
			}
			g.set(c, "resources", program+".resources")
			for _, e := range extras {
				if e.list != "volumes" {
					g.extend(c, e, program)
				}
			}
		}
	}
}

// extra is a value whose items are added to a list of a program's pods, or of their containers.
// The field is unique among the items.
type extra struct{ value, list, field string }

var extras = []extra{{"extraEnv", "env", "name"}, {"extraVolumes", "volumes", "name"}, {"extraVolumeMounts", "volumeMounts", "mountPath"}}

// extend puts a token for a value's items at the end of a list.
func (g *generator) extend(in map[string]any, e extra, program string) {
	value := "$.Values." + program + "." + e.value
	if items, has := in[e.list].([]any); has {
		in[e.list] = append(items, map[string]any{e.field: g.items(value)})
	} else {
		in[e.list] = g.field(value)
	}
}

// fields returns the unique fields of the items that containers of objects, or their pods, have.
func (e extra) fields(objects []*unstructured.Unstructured) []string {
	var all []string
	of := func(o map[string]any) {
		items, _ := o[e.list].([]any)
		for _, item := range items {
			all = append(all, fmt.Sprint(item.(map[string]any)[e.field]))
		}
	}
	for _, o := range objects {
		manifests.Walk(o.Object, func(key string, value any) any {
			switch value := value.(type) {
			case []any:
				for _, c := range value {
					if container, is := c.(map[string]any); is && key == "containers" {
						of(container)
					}
				}
			case map[string]any:
				if key == "spec" {
					of(value)
				}
			}
			return value
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// once returns the lines that refuse items of values which the program's pods have already: the
// API server refuses some, and some only with server-side apply.
func once(t template) ([]string, error) {
	base, err := manifests.Base(t.base)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, e := range extras {
		own := e.fields(base)
		lines = append(lines, "{{- $set := dict"+each(own, "the chart")+" }}")
		for _, c := range t.components {
			objects, err := manifests.Base(t.base)
			if err != nil {
				return nil, err
			}
			if objects, err = manifests.Add(objects, c.folder); err != nil {
				return nil, err
			}
			added := slices.DeleteFunc(e.fields(objects), func(name string) bool { return slices.Contains(own, name) })
			if len(added) > 0 {
				by := strings.Join(slices.Compact(valueName.FindAllString(c.when, -1)), " and ")
				lines = append(lines, "{{- if "+c.when+" }}{{- $set = merge $set (dict"+each(added, strings.ReplaceAll(by, "$.Values.", ""))+") }}{{- end }}")
			}
		}
		lines = append(lines, fmt.Sprintf(`{{- include "semaphore.once" (dict "value" %q "field" %q "items" $.Values.%[1]s "set" $set) }}`, t.values+"."+e.value, e.field))
	}
	return lines, nil
}

// valueName is the name of a value in a condition.
var valueName = regexp.MustCompile(`\$\.Values\.[\w.]+`)

// each returns the arguments of dict for names with the same value.
func each(names []string, value string) string {
	arguments := ""
	for _, name := range names {
		arguments += fmt.Sprintf(" %q %q", name, value)
	}
	return arguments
}

// condition returns the condition under which an object exists, besides that of its base.
func condition(o *unstructured.Unstructured) string {
	switch o.GetKind() {
	case "NetworkPolicy":
		return "$.Values.networkPolicy.enabled"
	case "DaemonSet":
		return "$.Values.wireguard.enabled"
	case "CustomResourceDefinition":
		return "$.Values.relay.crd"
	}
	return ""
}

// template returns the text of a template.
func (g *generator) template(t template) (string, error) {
	objects, err := manifests.Base(t.base)
	if err != nil {
		return "", err
	}
	for _, o := range objects {
		if g.prepare(o, t.values); o.GetKind() == "CustomResourceDefinition" {
			keep(o)
		}
	}
	variants := make([][]variant, len(objects))
	var added []string
	for _, c := range t.components {
		var copies []*unstructured.Unstructured
		for _, o := range objects {
			copies = append(copies, o.DeepCopy())
		}
		changed, err := manifests.Add(copies, c.folder)
		if err != nil {
			return "", err
		}
		for i, o := range changed {
			if i >= len(objects) {
				// An object of a component for all programs belongs to the first of them.
				if c.folder == "authenticated" && t.base != "wireguard" {
					continue
				}
				g.prepare(o, "")
				lines, err := text(o)
				if err != nil {
					return "", err
				}
				added = append(added, document(escape(lines), c.when)...)
				continue
			}
			lines, err := text(o)
			if err != nil {
				return "", err
			}
			variants[i] = append(variants[i], variant{c.when, lines})
		}
	}
	var all []string
	for i, o := range objects {
		if o.GetKind() == "Namespace" {
			continue // Helm keeps the release in it.
		}
		lines, err := text(o)
		if err != nil {
			return "", err
		}
		all = append(all, document(merge(escape(lines), escapeAll(variants[i])), condition(o))...)
	}
	all = append(all, added...)
	refusals, err := once(t)
	if err != nil {
		return "", err
	}
	all = append(refusals, all...)
	if t.values != "" && t.values != "wireguard" {
		all = slices.Concat([]string{"{{- if $.Values." + t.values + ".enabled }}"}, all, []string{"{{- end }}"})
	}
	return strings.Join(g.replace(all), "\n") + "\n", nil
}

// document returns the lines of an object that exists under a condition; empty: always.
func document(lines []string, when string) []string {
	all := append([]string{"---"}, lines...)
	if when != "" {
		all = slices.Concat([]string{"{{- if " + when + " }}"}, all, []string{"{{- end }}"})
	}
	return all
}

// escape escapes what Helm would take for its own.
func escape(lines []string) []string {
	escaped := make([]string, len(lines))
	for i, l := range lines {
		escaped[i] = strings.ReplaceAll(l, "{{", "{{ `{{` }}")
	}
	return escaped
}

func escapeAll(variants []variant) []variant {
	var all []variant
	for _, v := range variants {
		all = append(all, variant{v.when, escape(v.lines)})
	}
	return all
}

// remotes returns the template of the accounts for the other clusters.
func (g *generator) remotes() (string, error) {
	objects, err := manifests.Base("remote")
	if err != nil {
		return "", err
	}
	const suffix = "-SUFFIX"
	manifests.Suffix(objects, suffix)
	all := []string{"{{- range $remote, $_ := $.Values.remotes }}"}
	for _, o := range objects {
		g.prepare(o, "")
		lines, err := text(o)
		if err != nil {
			return "", err
		}
		all = append(all, document(escape(lines), "")...)
	}
	joined := strings.Join(append(g.replace(all), "{{- end }}", ""), "\n")
	return strings.ReplaceAll(joined, suffix, "-{{ $remote }}"), nil
}

// keep makes Helm keep a CRD, whose deletion deletes all of its objects.
func keep(o *unstructured.Unstructured) {
	annotations := map[string]string{"helm.sh/resource-policy": "keep"}
	maps.Copy(annotations, o.GetAnnotations())
	o.SetAnnotations(annotations)
}

// mcs returns the template of the CRDs of the Multi-Cluster Services API, and of the right of
// CoreDNS to read imports.
func (g *generator) mcs(root string) (string, error) {
	crds, err := manifests.CRDs()
	if err != nil {
		return "", err
	}
	all := []string{"{{- if $.Values.mcs.enabled }}", "{{- if $.Values.mcs.crds }}"}
	for _, o := range crds {
		keep(o)
		lines, err := text(o)
		if err != nil {
			return "", err
		}
		all = append(all, document(escape(lines), "")...)
	}
	all = append(all, "{{- end }}", "{{- with $.Values.mcs.coreDNS.serviceAccount }}")
	content, err := os.ReadFile(filepath.Join(root, "deploy", "coredns", "clusterset.yaml"))
	if err != nil {
		return "", err
	}
	rights, err := manifests.Decode(content)
	if err != nil {
		return "", err
	}
	for _, o := range rights {
		if subjects, has := o.Object["subjects"].([]any); has {
			subject := subjects[0].(map[string]any)
			subject["name"], subject["namespace"] = g.scalar("."), g.scalar("$.Values.mcs.coreDNS.namespace")
		}
		lines, err := text(o)
		if err != nil {
			return "", err
		}
		all = append(all, document(escape(lines), "")...)
	}
	all = append(all, "{{- end }}", "{{- end }}", "")
	return strings.Join(g.replace(all), "\n"), nil
}
