package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/deploy"
)

// kustomization is a kustomization.yaml of deploy/. Unknown fields are an error, so that
// none is ignored silently.
type kustomization struct {
	APIVersion     string   `json:"apiVersion"`
	Kind           string   `json:"kind"`
	Resources      []string `json:"resources,omitempty"`
	Configurations []string `json:"configurations,omitempty"` // fields with names for nameSuffix; suffix needs none
	Patches        []struct {
		Target struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"target"`
		Patch string `json:"patch"`
	} `json:"patches,omitempty"`
}

func read(folder string) (kustomization, error) {
	var k kustomization
	content, err := deploy.Files.ReadFile(path.Join(folder, "kustomization.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(content, &k)
	}
	if err != nil {
		return k, fmt.Errorf("deploy/%s: %w", folder, err)
	}
	return k, nil
}

// base returns the objects of a folder of deploy/, made from its files.
func base(folder string) ([]*unstructured.Unstructured, error) {
	k, err := read(folder)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, file := range k.Resources {
		content, err := deploy.Files.ReadFile(path.Join(folder, file))
		if err != nil {
			return nil, err
		}
		found, err := decode(content)
		if err != nil {
			return nil, fmt.Errorf("deploy/%s/%s: %w", folder, file, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// decode returns the objects of a file.
func decode(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err == nil {
			document, err = yaml.YAMLToJSON(document)
		}
		if err == nil && string(document) == "null" {
			continue // Only comments.
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = o.UnmarshalJSON(document)
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
}

// suffix renames objects and all references to them. It replaces every string that equals
// one of the names: in deploy/remote no other string does.
func suffix(objects []*unstructured.Unstructured, suffix string) {
	names := map[any]bool{}
	for _, o := range objects {
		names[o.GetName()] = true
	}
	for _, o := range objects {
		walk(o.Object, func(_ string, value any) any {
			if text, is := value.(string); is && names[text] {
				return text + suffix
			}
			return value
		})
	}
}

// walk replaces each value in an object, recursively, by what change returns for it and its
// key.
func walk(in any, change func(key string, value any) any) {
	switch in := in.(type) {
	case map[string]any:
		for key, value := range in {
			in[key] = change(key, value)
			walk(in[key], change)
			if list, is := in[key].([]any); is {
				for i, item := range list {
					if _, text := item.(string); text {
						list[i] = change(key, item)
					}
				}
			}
		}
	case []any:
		for _, item := range in {
			walk(item, change)
		}
	}
}

// patch applies the patches of a component of deploy/, which patch DaemonSets.
func patch(objects []*unstructured.Unstructured, component string) error {
	k, err := read(component)
	if err != nil {
		return err
	}
	for _, p := range k.Patches {
		change, err := yaml.YAMLToJSON([]byte(p.Patch))
		if err != nil {
			return fmt.Errorf("deploy/%s: %w", component, err)
		}
		for _, o := range objects {
			if o.GetKind() != p.Target.Kind || o.GetName() != p.Target.Name {
				continue
			}
			text, err := o.MarshalJSON()
			if err == nil {
				text, err = strategicpatch.StrategicMergePatch(text, change, appsv1.DaemonSet{})
			}
			if err == nil {
				err = o.UnmarshalJSON(text)
			}
			if err != nil {
				return fmt.Errorf("deploy/%s: %w", component, err)
			}
		}
	}
	return nil
}
