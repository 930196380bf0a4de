package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// Apply applies manifests, server-side, as kubectl does: a file, a folder with a
// kustomization (which needs kubectl among the tools), or a folder of files,
// taken in the order of their names. Namespaces and custom resource definitions
// go first, whatever their place; what is defined is served when it returns.
func (c *Cluster) Apply(ctx context.Context, paths ...string) error {
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		more, err := c.load(ctx, path)
		if err != nil {
			return fmt.Errorf("read the manifests %s: %w", path, err)
		}
		objects = append(objects, more...)
	}
	return c.ApplyObjects(ctx, objects...)
}

// load reads the objects of one argument of Apply.
func (c *Cluster) load(ctx context.Context, path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		for _, name := range []string{"kustomization.yaml", "kustomization.yml", "Kustomization"} {
			if _, err := os.Stat(filepath.Join(path, name)); err == nil {
				rendered, err := c.Kubectl(ctx, "kustomize", path)
				if err != nil {
					return nil, err
				}
				return decode([]byte(rendered))
			}
		}
		// Sorted, says the documentation of Glob's order within one folder.
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return nil, err
		}
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		more, err := decode(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		objects = append(objects, more...)
	}
	return objects, nil
}

// decode reads the documents of a YAML or JSON stream; lists are taken apart
// and empty documents left out.
func decode(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var object unstructured.Unstructured
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) == 0 {
			continue
		}
		if !object.IsList() {
			objects = append(objects, &object)
			continue
		}
		list, err := object.ToList()
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
}

// ApplyObjects is Apply for objects that are read already.
func (c *Cluster) ApplyObjects(ctx context.Context, objects ...*unstructured.Unstructured) error {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.discovery))
	for _, object := range inOrder(objects) {
		if err := c.applyOne(ctx, mapper, object); err != nil {
			return fmt.Errorf("apply %s %s in %s: %w", object.GetKind(), object.GetName(), c.Name, err)
		}
	}
	return nil
}

const definition = "CustomResourceDefinition"

// inOrder puts first what others need.
func inOrder(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	rank := func(o *unstructured.Unstructured) int {
		switch o.GetKind() {
		case "Namespace":
			return 0
		case definition:
			return 1
		default:
			return 2
		}
	}
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return sorted
}

func (c *Cluster) applyOne(ctx context.Context, mapper *restmapper.DeferredDiscoveryRESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	var mapping *meta.RESTMapping
	// A kind whose definition was applied just now takes a moment to be served.
	served, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := Wait(served, kind.String(), func(context.Context) (err error) {
		mapping, err = mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			mapper.Reset()
		}
		return err
	})
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace := object.GetNamespace()
		if namespace == "" {
			namespace = metav1.NamespaceDefault
		}
		resource = c.dynamic.Resource(mapping.Resource).Namespace(namespace)
	}
	applied, err := resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "testbed", Force: true})
	if err != nil || kind.Kind != definition {
		return err
	}
	return c.waitForServed(ctx, applied)
}

// createsSettle is how long after a definition was established the API server
// still holds up each create by as much (serveResource in customresource_handler.go
// of apiextensions-apiserver).
const createsSettle = 2 * time.Second

// waitForServed waits until the API server lists what a custom resource
// definition defines, and serves it as it will from then on: it does so on its
// own time after the definition is there, and on a busy machine that is seconds.
func (c *Cluster) waitForServed(ctx context.Context, crd *unstructured.Unstructured) error {
	var d struct {
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Plural string `json:"plural"`
			} `json:"names"`
			Versions []struct {
				Name   string `json:"name"`
				Served bool   `json:"served"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(crd.Object, &d); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, v := range d.Spec.Versions {
		if !v.Served {
			continue
		}
		resource := schema.GroupVersionResource{Group: d.Spec.Group, Version: v.Name, Resource: d.Spec.Names.Plural}
		err := Wait(ctx, resource.String()+" to be served", func(ctx context.Context) error {
			list, err := c.discovery.ServerResourcesForGroupVersion(resource.GroupVersion().String())
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }) {
				return errors.New("not among the resources of its group")
			}
			_, err = c.dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
		if err != nil {
			return err
		}
	}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	return Wait(ctx, crd.GetName()+" to be settled", func(ctx context.Context) error {
		now, err := c.dynamic.Resource(definitions).Get(ctx, crd.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		since, err := establishedSince(now)
		if err == nil && time.Since(since) < createsSettle {
			err = fmt.Errorf("established at %v", since)
		}
		return err
	})
}

func establishedSince(crd *unstructured.Unstructured) (time.Time, error) {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return time.Time{}, err
	}
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] == "Established" && condition["status"] == "True" {
			since, _ := condition["lastTransitionTime"].(string)
			return time.Parse(time.RFC3339, since)
		}
	}
	return time.Time{}, errors.New("not established")
}
