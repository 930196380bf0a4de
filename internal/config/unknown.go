package config

import (
	"regexp"
	"slices"
	"strings"
)

// unknownVariables returns warnings about environment variables with our prefix that no
// program reads: most likely typing errors.
func (l *loader) unknownVariables(environ []string) []string {
	known := l.knownVariables()
	fromFile := l.setting(&l.ClustersConfig)
	var warnings []string
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || slices.Contains(known, name) || serviceLink(name, value) {
			continue
		}
		if fromFile.set && strings.HasPrefix(name, groupPrefix("")) {
			warnings = append(warnings, name+": has no effect, because "+fromFile.origin+" replaces it")
			continue
		}
		warnings = append(warnings, name+": unknown, and has no effect")
	}
	slices.Sort(warnings)
	return warnings
}

// knownVariables returns those of all programs, which often share an environment, and of
// the remotes that are configured by variables.
func (l *loader) knownVariables() []string {
	var known []string
	for _, p := range Programs() {
		for i := range p.Settings {
			known = append(known, p.Settings[i].Variable)
		}
	}
	if !l.setting(&l.ClustersConfig).set {
		for _, r := range l.remotes {
			for _, s := range r.settings {
				known = append(known, s.variable)
			}
		}
	}
	return known
}

// serviceLink reports whether Kubernetes derived a variable from the name of a Service
// such as "semaphore-policy", which it does unless a pod sets enableServiceLinks to false.
// https://kubernetes.io/docs/tutorials/services/connect-applications-service/
func serviceLink(name, value string) bool {
	switch {
	case strings.HasSuffix(name, "_SERVICE_HOST"), strings.Contains(name, "_SERVICE_PORT"):
		return true
	case strings.Contains(name, "_PORT_"):
		return regexp.MustCompile(`_PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?$`).MatchString(name)
	default:
		// A mistyped setting of ours could end like that, but its value has no scheme.
		return strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
	}
}
