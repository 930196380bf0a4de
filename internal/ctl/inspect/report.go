package inspect

import (
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// The fields of the controllers' reports that are used here. Fields that an older program
// doesn't report stay zero.

// Mirror is the report of semaphore-service-mirror.
type Mirror struct {
	Version  string `json:"version"`
	Cluster  string `json:"cluster"`
	Leading  bool   `json:"leading"`
	NotReady string `json:"notReady"`
	Election struct {
		Error string `json:"error"`
	} `json:"election"`
	Clusters []MirrorCluster `json:"clusters"`
	Services []Service       `json:"services"`
	Rejected []struct {
		Origin string `json:"origin"`
		Reason string `json:"reason"`
	} `json:"rejected"`
	// Former are clusters that are no longer configured, and of which objects are left.
	// Departed are configured ones that the mirror ignores.
	Former      []FormerCluster         `json:"former"`
	Departed    []string                `json:"departed"`
	Omitted     int                     `json:"omitted"`
	Credentials map[string]status.Trial `json:"credentials"`
	// MultiCluster is nil if the Multi-Cluster Services API is off.
	MultiCluster *ImportReport `json:"multiCluster"`
}

// FormerCluster is a cluster that is no longer configured, with the numbers of its objects.
type FormerCluster struct {
	Name     string `json:"name"`
	Services int    `json:"services"`
	Slices   int    `json:"slices"`
}

// MirrorCluster is a cluster in the report of the service mirror.
type MirrorCluster struct {
	Name      string  `json:"name"`
	Local     bool    `json:"local"`
	Prefix    string  `json:"prefix"`
	Watches   []Watch `json:"watches"`
	Services  int     `json:"services"`
	Endpoints int     `json:"endpoints"`
	Refused   int     `json:"refused"`
	Bounds    string  `json:"bounds"`
}

// Watch is the watch of one kind.
type Watch struct {
	Kind  string `json:"kind"`
	Stale bool   `json:"stale"`
	status.Connection
}

// Service is a mirror or a global service.
type Service struct {
	Name      string   `json:"name"`
	Origin    string   `json:"origin"`
	Clusters  []string `json:"clusters"`
	Conflicts []struct {
		Cluster, What string
	} `json:"conflicts"`
	Instead string            `json:"nameTakenBy"`
	Refused map[string]string `json:"refused"`
	Foreign []string          `json:"foreignSlices"`
	Held    string            `json:"held"`
	// Overridden are objects that others change again after each write.
	Overridden []status.Override `json:"overridden"`
	Error      string            `json:"error"`
}
