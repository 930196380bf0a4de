// Package manifests turns what clusters are to have into files, upon the bases of
// deploy/, and files into objects. What semaphorectl applies and what it writes for a
// Git repository are the same files.
package manifests

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/deploy"
)

// ManagedLabel, with the value Manager, is on all that semaphorectl installs, and on
// nothing else.
const (
	ManagedLabel = "app.kubernetes.io/managed-by"
	Manager      = "semaphorectl"
)

// The tools, by the names that --tools has.
const (
	WireGuard = "wireguard"
	Mirror    = "mirror"
	Policy    = "policy"
)

// Tools are all of them.
func Tools() []string { return []string{WireGuard, Mirror, Policy} }

// Account is the name of a tool in the names of accounts and Secrets.
func Account(tool string) string {
	if tool == Mirror {
		return "service-mirror"
	}
	return tool
}

// Cluster is what one cluster is to have.
type Cluster struct {
	Name  string
	Tools []string
	// Remotes are the clusters that may read this one.
	Remotes []string
	// Settings are the ConfigMap that all programs read.
	Settings map[string]string
	// Image is the name of the image, with a tag or a digest.
	Image string
	// Pools are Calico's, for the remotes' pod subnets.
	Pools []*unstructured.Unstructured
	// Foreign says that the namespace is somebody else's and stays as it is.
	Foreign bool
	// Cleanup has the agents remove what they set up, and end.
	Cleanup bool
}

// bases is where deploy/ is in a tree.
const bases = "bases"

// component is the folder of deploy/ with a tool.
func component(tool string) string {
	if tool == Mirror {
		return "service-mirror"
	}
	return tool
}

// A Tree is files by path, with slashes.
type Tree map[string][]byte

// New makes the files for clusters: the bases, and a folder for each cluster.
func New(clusters ...Cluster) (Tree, error) {
	tree := Tree{}
	err := fs.WalkDir(deploy.Files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".yaml") {
			return err
		}
		content, err := deploy.Files.ReadFile(file)
		tree[path.Join(bases, file)] = content
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range clusters {
		if err := tree.add(&clusters[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", clusters[i].Name, err)
		}
	}
	return tree, nil
}

// object is YAML that is written.
type object = map[string]any

func (t Tree) add(c *Cluster) error {
	// The namespace is in the base of the agents.
	resources := []string{"../" + bases + "/wireguard"}
	for _, tool := range []string{Mirror, Policy} {
		if slices.Contains(c.Tools, tool) {
			resources = append(resources, "../"+bases+"/"+component(tool))
		}
	}
	resources = append(resources, "../"+bases+"/tokens")
	for _, remote := range c.Remotes {
		folder := "remote-" + remote
		resources = append(resources, folder)
		err := t.write(path.Join(c.Name, folder, "kustomization.yaml"), "What "+remote+" may read here.", object{
			"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
			"resources":  []string{"../../" + bases + "/remote"},
			"nameSuffix": "-" + remote,
		})
		if err != nil {
			return err
		}
	}
	if len(c.Pools) > 0 {
		var all bytes.Buffer
		for _, pool := range c.Pools {
			text, err := yaml.Marshal(pool.Object)
			if err != nil {
				return err
			}
			all.WriteString("---\n")
			all.Write(text)
		}
		t[path.Join(c.Name, "ippools.yaml")] = all.Bytes()
		resources = append(resources, "ippools.yaml")
	}
	var literals []string
	for _, key := range slices.Sorted(maps.Keys(c.Settings)) {
		literals = append(literals, key+"="+c.Settings[key])
	}
	kustomization := object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": resources,
		"labels":    []object{{"pairs": object{ManagedLabel: Manager}}},
		"images":    []object{image(c.Image)},
		"configMapGenerator": []object{{
			"name": "semaphore", "namespace": cli.Namespace, "literals": literals,
		}},
	}
	if c.Cleanup {
		kustomization["components"] = []string{"../" + bases + "/wireguard/cleanup"}
	}
	var patches []object
	if c.Foreign {
		patches = append(patches, remove("v1", "Namespace", cli.Namespace, ""))
	}
	if !slices.Contains(c.Tools, WireGuard) {
		patches = append(patches, remove("apps/v1", "DaemonSet", "semaphore-wireguard", cli.Namespace))
	}
	if len(patches) > 0 {
		kustomization["patches"] = patches
	}
	return t.write(path.Join(c.Name, "kustomization.yaml"),
		"Cluster "+c.Name+", as semaphorectl installs it. Secrets are not here: semaphorectl tokens hands them over.", kustomization)
}

// remove is a patch that takes an object out.
func remove(version, kind, name, namespace string) object {
	meta := object{"name": name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	text, err := yaml.Marshal(object{"apiVersion": version, "kind": kind, "metadata": meta, "$patch": "delete"})
	if err != nil {
		panic(err) // Of strings alone.
	}
	return object{"patch": string(text)}
}

// image is what kustomize puts in the place of the bases' image.
func image(name string) object {
	if before, digest, found := strings.Cut(name, "@"); found {
		return object{"name": "kube-semaphore", "newName": before, "digest": digest}
	}
	at := strings.LastIndexByte(name, ':')
	if at < 0 || strings.Contains(name[at:], "/") { // A port isn't a tag.
		return object{"name": "kube-semaphore", "newName": name, "newTag": "latest"}
	}
	return object{"name": "kube-semaphore", "newName": name[:at], "newTag": name[at+1:]}
}

func (t Tree) write(file, comment string, content object) error {
	text, err := yaml.Marshal(content)
	if err != nil {
		return err
	}
	t[file] = append([]byte("# "+comment+"\n"), text...)
	return nil
}

// Render returns the objects of a cluster of the tree.
func (t Tree) Render(cluster string) ([]*unstructured.Unstructured, error) {
	files := filesys.MakeFsInMemory()
	for name, content := range t {
		if err := files.WriteFile("/"+name, content); err != nil {
			return nil, err
		}
	}
	found, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/"+cluster)
	if err != nil {
		return nil, fmt.Errorf("render the manifests of %s: %w", cluster, err)
	}
	var objects []*unstructured.Unstructured
	for _, resource := range found.Resources() {
		content, err := resource.Map()
		if err != nil {
			return nil, err
		}
		objects = append(objects, &unstructured.Unstructured{Object: content})
	}
	return objects, nil
}
