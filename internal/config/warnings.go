package config

import (
	"fmt"
	"slices"
	"strings"
)

// prefixWarnings returns a warning for each pair of remotes whose mirrors can have the
// same name.
func prefixWarnings(remotes []Remote) []string {
	var warnings []string
	for i := range remotes {
		for j := range remotes {
			if a, b := &remotes[i], &remotes[j]; i != j && strings.HasPrefix(b.ServicePrefix, a.ServicePrefix+"-") {
				warnings = append(warnings, fmt.Sprintf(
					"service prefixes %q of %s and %q of %s: a namespace of %s can give its mirrors names that those of %s would have, and keeps those that are free",
					a.ServicePrefix, a.Name, b.ServicePrefix, b.Name, a.Name, b.Name))
			}
		}
	}
	return warnings
}

// ignoredWarnings returns a warning for each remote that is configured although it left.
func ignoredWarnings(cfg *Mirror) []string {
	var warnings []string
	for i := range cfg.Remotes {
		if name := cfg.Remotes[i].Name; slices.Contains(cfg.Departed, name) {
			warnings = append(warnings, fmt.Sprintf("remote %s is ignored, because it is in SEMAPHORE_DEPARTED_REMOTES as well", name))
		}
	}
	return warnings
}
