package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
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
	// Replacements put a setting in place of its name. Add leaves the name in place, and Render replaces it.
	Replacements []any `json:"replacements,omitempty"`
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

// Base returns the objects of a folder of deploy/, made from its files.
func Base(folder string) ([]*unstructured.Unstructured, error) {
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
		found, err := Decode(content)
		if err != nil {
			return nil, fmt.Errorf("deploy/%s/%s: %w", folder, file, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// Decode returns the objects of a file.
func Decode(content []byte) ([]*unstructured.Unstructured, error) {
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

// Suffix renames objects and all references to them. It replaces every string that equals
// one of the names: in deploy/remote no other string does.
func Suffix(objects []*unstructured.Unstructured, suffix string) {
	names := map[any]bool{}
	for _, o := range objects {
		names[o.GetName()] = true
	}
	for _, o := range objects {
		Walk(o.Object, func(_ string, value any) any {
			if text, is := value.(string); is && names[text] {
				return text + suffix
			}
			return value
		})
	}
}

// Walk replaces each value in an object, recursively, by what change returns for it and its
// key.
func Walk(in any, change func(key string, value any) any) {
	switch in := in.(type) {
	case map[string]any:
		for key, value := range in {
			in[key] = change(key, value)
			Walk(in[key], change)
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
			Walk(item, change)
		}
	}
}

// Add returns objects with those of a component of deploy/, after its patches.
func Add(objects []*unstructured.Unstructured, component string) ([]*unstructured.Unstructured, error) {
	k, err := read(component)
	if err != nil {
		return nil, err
	}
	added, err := Base(component)
	if err != nil {
		return nil, err
	}
	for _, p := range k.Patches {
		change, err := yaml.YAMLToJSON([]byte(p.Patch))
		if err != nil {
			return nil, fmt.Errorf("deploy/%s: %w", component, err)
		}
		for _, o := range objects {
			if o.GetKind() != p.Target.Kind || o.GetName() != p.Target.Name {
				continue
			}
			if err := patch(o, change); err != nil {
				return nil, fmt.Errorf("deploy/%s: %w", component, err)
			}
		}
	}
	return append(objects, added...), nil
}

// patch applies a strategic merge patch, or a list of JSON patches.
func patch(o *unstructured.Unstructured, change []byte) error {
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	if change[0] == '[' {
		steps, err := jsonpatch.DecodePatch(change)
		if err != nil {
			return err
		}
		if text, err = steps.Apply(text); err != nil {
			return err
		}
		return o.UnmarshalJSON(text)
	}
	kind, err := scheme.Scheme.New(o.GroupVersionKind())
	if err != nil {
		return err
	}
	if text, err = strategicpatch.StrategicMergePatch(text, change, kind); err != nil {
		return err
	}
	return o.UnmarshalJSON(text)
}
