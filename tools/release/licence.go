package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// A licence is on which terms we may pass a module on.
type licence struct {
	// ids are SPDX identifiers (https://spdx.org/licenses), sorted. Of several
	// each covers a part of the module.
	ids []string
	// files are what has to accompany the programs: the licences themselves,
	// notices, patent grants. Paths are relative to the module.
	files []string
}

// expression is the licence as an SPDX expression.
func (l licence) expression() string { return strings.Join(l.ids, " AND ") }

var (
	termsName  = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([.-].*)?$`)
	noticeName = regexp.MustCompile(`(?i)^(notice|patents)([.-].*)?$`)
	// unlinked are files of code, and the licences of documents, of which nothing is passed on.
	unlinked = []string{".go", ".docs"}
)

// readLicence recognizes the licence files in folders of the module at dir,
// because code that a module took from elsewhere keeps its licence beside it.
// Each file must consist of licences that are known and accepted, and "." must hold one.
func readLicence(dir string, folders []string) (licence, error) {
	var found licence
	var errs []error
	atTop := false
	for _, folder := range folders {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			return licence{}, err
		}
		for _, entry := range entries {
			name := entry.Name()
			terms := termsName.MatchString(name)
			if entry.IsDir() || slices.Contains(unlinked, filepath.Ext(name)) || !terms && !noticeName.MatchString(name) {
				continue
			}
			file := filepath.Join(folder, name)
			found.files = append(found.files, file)
			if !terms {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return licence{}, err
			}
			ids, err := recognize(content)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
			}
			found.ids = append(found.ids, ids...)
			atTop = atTop || folder == "."
		}
	}
	if !atTop {
		errs = append(errs, fmt.Errorf("no LICENSE or COPYING file in %s", dir))
	}
	slices.Sort(found.ids)
	found.ids = slices.Compact(found.ids)
	return found, errors.Join(errs...)
}

// accepted are the licences on which terms programs may be passed on under Apache-2.0.
func accepted() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}
}

// leastCoverage is the percentage of a file's words that must belong to licences that are
// known. The rest of one with several is what introduces each.
const leastCoverage = 75

// recognize returns the SPDX identifiers of the licences in a file, sorted. It is an error
// when there is none, one that isn't accepted, or much other text.
func recognize(text []byte) ([]string, error) {
	found := licensecheck.Scan(text)
	var ids, refused []string
	for _, m := range found.Match {
		if slices.Contains(accepted(), m.ID) {
			ids = append(ids, m.ID)
		} else {
			refused = append(refused, m.ID)
		}
	}
	slices.Sort(ids)
	switch {
	case len(refused) > 0:
		return nil, fmt.Errorf("not acceptable here: %s", strings.Join(refused, ", "))
	case found.Percent < leastCoverage:
		return nil, fmt.Errorf("unknown: %.0f %% of its words are those of a known licence", found.Percent)
	}
	return slices.Compact(ids), nil
}
