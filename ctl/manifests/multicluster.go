package manifests

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/config/crd"
)

// MultiCluster is the part of an installation for the Multi-Cluster Services API.
type MultiCluster struct {
	// CRDs is whether they are created or updated.
	CRDs bool
	// DNS is the service account of CoreDNS, which gets the right to read imports; empty: it
	// gets none.
	DNS types.NamespacedName
}

// ImportRole is the ClusterRole of the service mirror for imports.
const ImportRole = "semaphore-service-mirror-imports"

// CRDs returns the CRDs of the Multi-Cluster Services API, as the chart has them: that of exports,
// and that of imports.
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
