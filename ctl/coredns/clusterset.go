package coredns

import (
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// oldest is the first version with the option multicluster: earlier ones don't start with it.
const oldest = "1.12.2"

// Version returns the version of CoreDNS by the tag of its image; nil: unknown.
func (s *Setup) Version() *version.Version {
	name, _, _ := strings.Cut(path.Base(s.Image), "@")
	name, tag, _ := strings.Cut(name, ":")
	if !strings.Contains(name, "coredns") {
		return nil // The tag may be of anything.
	}
	v, err := version.ParseGeneric(tag)
	if err != nil || len(v.Components()) < 3 {
		return nil
	}
	return v
}

// Older reports whether this CoreDNS is known to be older than the option multicluster.
func (s *Setup) Older() bool {
	v := s.Version()
	return v != nil && v.LessThan(version.MustParseGeneric(oldest))
}

// ClusterSetFault returns why join can't let this CoreDNS serve the zone of imports, and what
// to do; empty: it can, or others do.
func (s *Setup) ClusterSetFault() (what, remedy string) {
	const byHand = `see "CoreDNS by hand" in docs/multi-cluster-services.md`
	switch {
	case s.Foreign(ClusterSet):
	case shadows(ClusterSet, s.Domain) != nil:
		return "the zone " + ClusterSet + " would shadow the cluster's own domain " + s.Domain, "give the cluster another domain"
	case s.Name == "":
		return "CoreDNS isn't a workload of the cluster, so its version and its account are unknown", byHand
	case s.Version() == nil:
		return "the image " + printable.Text(s.Image, printable.Short) + " doesn't show the version of CoreDNS, which must be " + oldest + " or later", byHand
	case s.Older():
		return "CoreDNS " + s.Version().String() + " is too old for names of " + ClusterSet, "upgrade it to " + oldest + " or later, then join again"
	case len(validation.IsDNS1123Subdomain(s.Account)) > 0:
		return "its service account has no valid name", byHand
	case s.like != nil && slices.ContainsFunc(s.like.directive("kubernetes").Body, isAccess):
		return "CoreDNS has other credentials than those of its service account", byHand
	}
	return "", ""
}
