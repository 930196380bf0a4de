package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
)

// readLicence recognizes the licence files in folders of the module at dir,
// because code that a module took from elsewhere keeps its licence beside it.
// Each file must be one that we know and accept, and "." must hold one.
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
			if entry.IsDir() || filepath.Ext(name) == ".go" || !terms && !noticeName.MatchString(name) {
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
			ids, err := recognize(string(content))
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

// Phrases that several licences share.
const (
	bsdGrant     = "redistribution and use in source and binary forms with or without modification are permitted provided that the following conditions are met"
	bsdNames     = "used to endorse or promote products derived from this software"
	bsdAdverts   = "all advertising materials mentioning features or use of this software"
	gnuWhole     = "everyone is permitted to copy and distribute verbatim copies of this license document but changing it is not allowed"
	gnuReference = "under the terms of the gnu"
)

// A mark identifies a licence by phrases of its text.
type mark struct {
	id      string
	refused bool     // not for programs that are given away under Apache-2.0
	all     []string // all of these phrases, in the form that plain returns
	none    []string // and none of these
}

func marks() []mark {
	return []mark{
		{id: "Apache-2.0", all: []string{"apache license version 2.0"}},
		{id: "MIT", all: []string{"permission is hereby granted free of charge to any person obtaining a copy of this software and associated documentation files"}},
		{id: "BSD-2-Clause", all: []string{bsdGrant}, none: []string{bsdNames, bsdAdverts}},
		{id: "BSD-3-Clause", all: []string{bsdGrant, bsdNames}, none: []string{bsdAdverts}},
		{id: "BSD-4-Clause", all: []string{bsdGrant, bsdAdverts}, refused: true},
		{id: "ISC", all: []string{"permission to use copy modify and distribute this software for any purpose with or without fee is hereby granted"}},
		{id: "ISC", all: []string{"permission to use copy modify and/or distribute this software for any purpose with or without fee is hereby granted"}},
		{id: "MPL-2.0", all: []string{"mozilla public license version 2.0"}},
		{id: "MPL-2.0", all: []string{"mozilla public license v. 2.0"}},
		{id: "GPL, LGPL or AGPL", all: []string{gnuWhole}, refused: true},
		{id: "GPL, LGPL or AGPL", all: []string{gnuReference}, refused: true},
		{id: "SSPL", all: []string{"server side public license"}, refused: true},
		{id: "BUSL", all: []string{"business source license"}, refused: true},
		{id: "Commons Clause", all: []string{"commons clause"}, refused: true},
	}
}

// recognize returns the identifiers of the licences in a file, in the order of
// marks. It is an error when there is none, or one that we don't accept.
func recognize(text string) ([]string, error) {
	text = plain(text)
	contains := func(phrase string) bool { return strings.Contains(text, phrase) }
	var ids, refused []string
	for _, m := range marks() {
		if slices.ContainsFunc(m.none, contains) ||
			slices.ContainsFunc(m.all, func(phrase string) bool { return !contains(phrase) }) {
			continue
		}
		if m.refused {
			refused = append(refused, m.id)
		} else {
			ids = append(ids, m.id)
		}
	}
	switch {
	case len(refused) > 0:
		return ids, fmt.Errorf("not acceptable here: %s", strings.Join(slices.Compact(refused), ", "))
	case len(ids) == 0:
		return nil, errors.New("unknown")
	}
	return slices.Compact(ids), nil
}

// plain makes texts comparable that differ in case, line breaks, commas or
// comment signs.
func plain(text string) string {
	text = strings.NewReplacer(",", "", "*", " ", "#", " ", "//", " ").Replace(strings.ToLower(text))
	return strings.Join(strings.Fields(text), " ")
}
