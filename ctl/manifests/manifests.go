// Package manifests makes the values of the chart in deploy/ from the settings of a cluster, and
// renders it. It works in memory on validated values: it fetches nothing, runs no other program, and
// no value becomes a path, a comment or the text of a template.
package manifests

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// ManagedLabel, with the value Manager, is set on all objects that semaphorectl creates itself, and
// on no others: those of the release have it with the value Helm.
const (
	ManagedLabel = "app.kubernetes.io/managed-by"
	Manager      = "semaphorectl"
	byHelm       = "Helm"
)

// What Helm sets on objects of a release, besides ManagedLabel.
const (
	releaseName      = "meta.helm.sh/release-name"
	releaseNamespace = "meta.helm.sh/release-namespace"
)

// Ours reports whether semaphorectl has created an object, or the release that it installs and upgrades.
func Ours(o metav1.Object) bool {
	by, of := o.GetLabels()[ManagedLabel], o.GetAnnotations()
	return by == Manager || by == byHelm && of[releaseName] == Release && of[releaseNamespace] == cli.Namespace
}

// OwnerOf returns the annotations by which Helm knows an object of a release; nil: it is of none.
func OwnerOf(o metav1.Object) map[string]string {
	of := o.GetAnnotations()
	if of[releaseName] == "" {
		return nil
	}
	return map[string]string{releaseName: of[releaseName], releaseNamespace: of[releaseNamespace]}
}

// OfRelease returns a rendered object as Helm applies it.
func OfRelease(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[ManagedLabel], annotations[releaseName], annotations[releaseNamespace] = byHelm, Release, cli.Namespace
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return o
}

// The tools, as in --tools.
const (
	WireGuard = "wireguard"
	Mirror    = "mirror"
	Policy    = "policy"
)

// PodSubnetsMap is the setting of the virtual subnets by which other clusters know a cluster's
// pods.
const PodSubnetsMap = "SEMAPHORE_POD_SUBNETS_MAP"

// Tools returns all tools.
func Tools() []string { return []string{WireGuard, Mirror, Policy} }

// Account returns the name of a tool in the names of its accounts and Secrets.
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
	// Pools is Calico's API for IP pools of the remotes' pod subnets; empty: there are none.
	Pools schema.GroupVersion
	// PodPrefixes is the value wireguard.podPrefixes, unless Have has one; empty: none.
	PodPrefixes string
	// MultiCluster is set if the mirror implements the Multi-Cluster Services API.
	MultiCluster *MultiCluster
	// Cleanup makes the agents clean up their nodes and exit.
	Cleanup bool
	// Relay makes the agents read the objects of semaphore-relay, which is installed.
	Relay bool
	// RelayAlone keeps semaphore-relay, whose objects the agents don't read yet.
	RelayAlone bool
	// Have are the values so far.
	Have map[string]any
	// Leaving are clusters whose endpoints the mirror withdraws, before the settings of all programs say so.
	Leaving []cluster.Name
}

// Render returns the objects of the release.
func (c *Cluster) Render() ([]*unstructured.Unstructured, error) {
	objects, err := c.render()
	if err != nil {
		return nil, fmt.Errorf("%s: manifests: %w", c.Name, err)
	}
	return objects, nil
}

func (c *Cluster) render() ([]*unstructured.Unstructured, error) {
	values, err := c.Values()
	if err != nil {
		return nil, err
	}
	release, err := Dry(values, c.Cleanup)
	if err != nil {
		return nil, err
	}
	return Decode([]byte(release.Manifest))
}

// withTag returns the name of an image with the tag latest, if it has neither a tag nor a
// digest.
func withTag(name string) string {
	if strings.Contains(name, "@") || strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") { // A port isn't a tag.
		return name
	}
	return name + ":latest"
}
