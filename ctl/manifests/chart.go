package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/deploy"
)

// Release is the name of the release of the chart.
const Release = "semaphore"

// Chart returns the chart of this release. The caller may change it.
func Chart() (*chart.Chart, error) {
	var files []*archive.BufferedFile
	err := fs.WalkDir(deploy.Files, "chart", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := deploy.Files.ReadFile(path)
		files = append(files, &archive.BufferedFile{Name: strings.TrimPrefix(path, "chart/"), Data: content})
		return err
	})
	if err != nil {
		return nil, err
	}
	return loader.LoadFiles(files)
}

// Capabilities are those that the chart needs of a cluster. Others don't change what it renders.
func Capabilities() *common.Capabilities {
	all := common.DefaultCapabilities.Copy()
	all.KubeVersion = common.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
	return all
}

// Dry returns the release that Helm would make of values, without asking a cluster; unchecked is without
// the schema.
func Dry(values map[string]any, unchecked bool) (*release.Release, error) {
	c, err := Chart()
	if err != nil {
		return nil, err
	}
	dry := action.NewInstall(action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)))
	dry.KubeVersion = &Capabilities().KubeVersion
	dry.DryRunStrategy, dry.ReleaseName, dry.Namespace, dry.SkipSchemaValidation = action.DryRunClient, Release, cli.Namespace, unchecked
	made, err := dry.Run(c, values)
	if err != nil {
		return nil, err
	}
	r, is := made.(*release.Release)
	if !is {
		return nil, fmt.Errorf("unexpected release %T", made)
	}
	return r, nil
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
