package testbed_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const manifests = `
apiVersion: example.org/v1
kind: Thing
metadata: {name: one}
---
# nothing but a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: account, namespace: new}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {key: value}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Cluster
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: new}
`

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.example.net}
spec:
  group: example.net
  scope: Cluster
  names: {kind: %s, plural: %s}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestApply(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	tb := testbed.Start(t, testbed.Config{})
	c, err := tb.StartCluster(ctx, testbed.ClusterConfig{Name: "aws"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "all.yaml"), manifests)

	t.Run("objects arrive in an order that works", func(t *testing.T) {
		// The second time changes nothing and must not fail either.
		for range 2 {
			if err := c.Apply(ctx, dir); err != nil {
				t.Fatal(err)
			}
		}
		things := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}
		if _, err := c.Dynamic().Resource(things).Get(ctx, "one", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := c.Client().CoreV1().ServiceAccounts("new").Get(ctx, "account", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		settings, err := c.Client().CoreV1().ConfigMaps("default").Get(ctx, "settings", metav1.GetOptions{})
		if err != nil || settings.Data["key"] != "value" {
			t.Errorf("settings %v, %v", settings.Data, err)
		}
	})

	t.Run("what is defined is served at once", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "definition.yaml")
		for n := range 3 {
			plural := fmt.Sprintf("others%d", n)
			writeFile(t, file, fmt.Sprintf(definition, plural, plural, plural))
			if err := c.Apply(ctx, file); err != nil {
				t.Fatal(err)
			}
			list, err := c.Client().Discovery().ServerResourcesForGroupVersion("example.net/v1")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }) {
				t.Errorf("%s isn't listed", plural)
			}
			others := schema.GroupVersionResource{Group: "example.net", Version: "v1", Resource: plural}
			if _, err := c.Dynamic().Resource(others).List(ctx, metav1.ListOptions{}); err != nil {
				t.Errorf("%s isn't served: %v", plural, err)
			}
		}
	})

	t.Run("a kustomization is rendered", func(t *testing.T) {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "kustomization.yaml"), "namePrefix: pre-\nresources: [settings.yaml]\n")
		writeFile(t, filepath.Join(dir, "settings.yaml"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: fix}}")
		if err := c.Apply(ctx, dir); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client().CoreV1().ConfigMaps("default").Get(ctx, "pre-fix", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("what the API server refuses is named", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bad.yaml")
		writeFile(t, file, "{apiVersion: v1, kind: Service, metadata: {name: broken}, spec: {ports: [{port: 700000}]}}")
		err := c.Apply(ctx, file)
		if err == nil || !strings.Contains(err.Error(), "Service broken") || !strings.Contains(err.Error(), "700000") {
			t.Errorf("error %v, want the object and the reason", err)
		}
	})

	t.Run("a missing path is named", func(t *testing.T) {
		if err := c.Apply(ctx, "/no/such/manifest.yaml"); err == nil || !strings.Contains(err.Error(), "manifest.yaml") {
			t.Errorf("error %v", err)
		}
	})
}
