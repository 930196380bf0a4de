// Package manifests renders the objects of a cluster from deploy/ and its settings. It works
// in memory on validated values: it fetches nothing, runs no other program, and no value
// becomes a path, a comment or unencoded YAML. semaphorectl applies the same objects that it
// writes for a Git repository.
package manifests

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// ManagedLabel, with the value Manager, is set on all objects that semaphorectl creates, and
// on no others.
const (
	ManagedLabel = "app.kubernetes.io/managed-by"
	Manager      = "semaphorectl"
)

// The tools, as in --tools.
const (
	WireGuard = "wireguard"
	Mirror    = "mirror"
	Policy    = "policy"
)

// Relay is the folder of semaphore-relay in deploy/. It isn't a tool of its own: it reads nodes
// for the agents.
const Relay = "relay"

// Names in deploy/ to replace.
const (
	imageName    = "kube-semaphore"
	settingsName = "semaphore"
)

// PodSubnetsMap is the setting of the virtual subnets by which other clusters know a cluster's
// pods.
const PodSubnetsMap = "SEMAPHORE_POD_SUBNETS_MAP"

// Tools returns all tools.
func Tools() []string { return []string{WireGuard, Mirror, Policy} }

// Account returns the name of a tool in the names of its accounts and Secrets and of its
// folder in deploy/.
func Account(tool string) string {
	if tool == Mirror {
		return "service-mirror"
	}
	return tool
}

// Cluster is the desired installation of a cluster.
type Cluster struct {
	Name  cluster.Name
	Tools []string
	// Remotes are the clusters that may read this one.
	Remotes []cluster.Name
	// Settings is the content of the programs' ConfigMap.
	Settings map[string]string
	// Image is the name of the image, with a tag or a digest.
	Image string
	// PullSecret is the name of the Secret with the registry's credentials, or empty.
	PullSecret string
	// Pools are Calico's IP pools for the remotes' pod subnets.
	Pools []*unstructured.Unstructured
	// MultiCluster is set if the mirror implements the Multi-Cluster Services API.
	MultiCluster *MultiCluster
	// Foreign is whether the namespace wasn't created by semaphorectl, and isn't rendered.
	Foreign bool
	// Cleanup makes the agents clean up their nodes and exit.
	Cleanup bool
	// Relay makes the agents read the objects of semaphore-relay, which is installed.
	Relay bool
}

// Render returns the objects, the namespace first.
func (c *Cluster) Render() ([]*unstructured.Unstructured, error) {
	objects, err := c.render()
	if err != nil {
		return nil, fmt.Errorf("%s: manifests: %w", c.Name, err)
	}
	return objects, nil
}

func (c *Cluster) render() ([]*unstructured.Unstructured, error) {
	for _, name := range append([]cluster.Name{c.Name}, c.Remotes...) {
		if _, err := cluster.ParseName(string(name)); err != nil {
			return nil, err
		}
	}
	// The namespace is in the base of the agents.
	folders := []string{"wireguard"}
	for _, tool := range []string{Mirror, Policy} {
		if slices.Contains(c.Tools, tool) {
			folders = append(folders, Account(tool))
		}
	}
	if c.Relay {
		folders = append(folders, Relay)
	}
	var objects []*unstructured.Unstructured
	for _, folder := range append(folders, "tokens") {
		found, err := Base(folder)
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	for _, remote := range c.Remotes {
		granted, err := Base("remote")
		if err != nil {
			return nil, err
		}
		Suffix(granted, "-"+string(remote))
		objects = append(objects, granted...)
	}
	multicluster, err := c.MultiCluster.render()
	if err != nil {
		return nil, err
	}
	objects = append(objects, multicluster...)
	settings, err := settings(c.Settings)
	if err != nil {
		return nil, err
	}
	objects = append(append(objects, settings), c.Pools...)
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return c.Foreign && o.GetKind() == "Namespace" || o.GetKind() == "DaemonSet" && !slices.Contains(c.Tools, WireGuard)
	})
	for _, component := range []struct {
		folder string
		wanted bool
	}{
		{"wireguard/relay", c.Relay}, {"wireguard/map", c.Settings[PodSubnetsMap] != "" && slices.Contains(c.Tools, WireGuard)}, {"wireguard/cleanup", c.Cleanup},
	} {
		if !component.wanted {
			continue
		}
		if objects, err = Add(objects, component.folder); err != nil {
			return nil, err
		}
	}
	image := withTag(c.Image)
	for i, o := range objects {
		o = o.DeepCopy() // Pools and CRDs belong to the caller.
		Walk(o.Object, func(key string, value any) any {
			switch of, isMap := value.(map[string]any); {
			case key == "image" && value == imageName:
				return image
			case key == "resourceNames" && value == PodSubnetsMap:
				return c.Settings[PodSubnetsMap]
			case isMap && (key == "configMapRef" || key == "configMapKeyRef") && of["name"] == settingsName:
				of["name"] = settings.GetName()
			case isMap && key == "spec" && of["containers"] != nil && c.PullSecret != "":
				of["imagePullSecrets"] = []any{map[string]any{"name": c.PullSecret}}
			}
			return value
		})
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[ManagedLabel] = Manager
		o.SetLabels(labels)
		objects[i] = o
	}
	return objects, nil
}

// Files returns the files of a folder for a Git repository, by name: the objects and a
// kustomization for kubectl apply -k.
func (c *Cluster) Files() (map[string][]byte, error) {
	objects, err := c.Render()
	if err != nil {
		return nil, err
	}
	const file = "semaphore.yaml"
	var all bytes.Buffer
	all.WriteString("# As installed by semaphorectl, without Secrets: semaphorectl tokens hands them over.\n")
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: write %s %s: %w", c.Name, o.GetKind(), o.GetName(), err)
		}
		all.WriteString("---\n")
		all.Write(text)
	}
	return map[string][]byte{
		file:                 all.Bytes(),
		"kustomization.yaml": []byte("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n  - " + file + "\n"),
	}, nil
}

// settings returns the ConfigMap. Its name contains a hash of its content, so that a change
// rolls the programs out again. The hash is that of kustomize, for clusters that were
// installed with it.
func settings(data map[string]string) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(map[string]any{"kind": "ConfigMap", "name": "", "data": data}) // As kustomize: its name is empty.
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	const digits = 10
	hash := strings.NewReplacer("0", "g", "1", "h", "3", "k", "a", "m", "e", "t").Replace(hex.EncodeToString(sum[:])[:digits])
	content := map[string]any{}
	for key, value := range data {
		content[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": content,
		"metadata": map[string]any{"name": settingsName + "-" + hash, "namespace": cli.Namespace},
	}}, nil
}

// withTag returns the name of an image with the tag latest, if it has neither a tag nor a
// digest.
func withTag(name string) string {
	if strings.Contains(name, "@") || strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") { // A port isn't a tag.
		return name
	}
	return name + ":latest"
}
