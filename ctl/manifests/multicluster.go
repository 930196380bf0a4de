package manifests

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/kube-semaphore/kube-semaphore/deploy"
)

// MultiCluster is the part of an installation for the Multi-Cluster Services API.
type MultiCluster struct {
	// CRDs are those that are created or updated.
	CRDs []*unstructured.Unstructured
	// DNS is the service account of CoreDNS, which gets the right to read imports; empty: it
	// gets none.
	DNS types.NamespacedName
}

// ImportRole is the ClusterRole of the service mirror for imports.
const ImportRole = "semaphore-service-mirror-imports"

// CRDs returns the CRDs of the Multi-Cluster Services API: that of exports, and that of
// imports.
func CRDs() ([]*unstructured.Unstructured, error) {
	exports, err := Decode(crd.ServiceExportCRD)
	if err != nil {
		return nil, fmt.Errorf("the CRD of exports: %w", err)
	}
	imports, err := Decode(crd.ServiceImportCRD)
	if err != nil {
		return nil, fmt.Errorf("the CRD of imports: %w", err)
	}
	return append(exports, imports...), nil
}

// render returns the objects: CRDs first, then the rights to use them.
func (m *MultiCluster) render() ([]*unstructured.Unstructured, error) {
	if m == nil {
		return nil, nil
	}
	component, err := Base("service-mirror/mcs")
	if err != nil {
		return nil, err
	}
	objects := append(append([]*unstructured.Unstructured{}, m.CRDs...), component...)
	if m.DNS.Name == "" {
		return objects, nil
	}
	content, err := deploy.Files.ReadFile("coredns/clusterset.yaml")
	if err != nil {
		return nil, err
	}
	rights, err := Decode(content)
	if err != nil {
		return nil, fmt.Errorf("deploy/coredns: %w", err)
	}
	for _, o := range rights {
		if o.GetKind() == "ClusterRoleBinding" {
			o.Object["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "namespace": m.DNS.Namespace, "name": m.DNS.Name}}
		}
	}
	return append(objects, rights...), nil
}
