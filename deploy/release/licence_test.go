package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Beginnings of the licences' texts.
const (
	apache = "                                 Apache License\n                           Version 2.0, January 2004\n"
	mit    = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and\nassociated documentation files (the \"Software\"), to deal in the Software"
	isc    = "Permission to use, copy, modify, and distribute this software for any\npurpose with or without fee is hereby granted"
	bsd2   = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted provided that the following conditions are\nmet:\n"
	bsd3   = bsd2 + "3. Neither the name of the copyright holder nor the names of its\ncontributors may be used to endorse or promote products derived from\nthis software without specific prior written permission."
	bsd4   = bsd3 + "All advertising materials mentioning features or use of this software\nmust display the following acknowledgement"
	mpl    = "Mozilla Public License Version 2.0\n\"Secondary License\" means either the GNU General Public License, Version 2.0, the GNU Lesser\nGeneral Public License, Version 2.1, or the GNU Affero General Public License, Version 3.0"
	gnu    = " Everyone is permitted to copy and distribute verbatim copies\n of this license document, but changing it is not allowed.\n"
)

func TestRecognize(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"Apache-2.0", apache, []string{"Apache-2.0"}},
		{"Apache-2.0 by reference", "Licensed under the Apache License, Version 2.0 (the \"License\")", []string{"Apache-2.0"}},
		{"MIT", mit, []string{"MIT"}},
		{"MIT in capitals and another line length", strings.ToUpper(strings.ReplaceAll(mit, " ", "\n")), []string{"MIT"}},
		{"ISC", isc, []string{"ISC"}},
		{"ISC with and/or", strings.Replace(isc, "and distribute", "and/or distribute", 1), []string{"ISC"}},
		{"two clauses of BSD", bsd2, []string{"BSD-2-Clause"}},
		{"three clauses of BSD", bsd3, []string{"BSD-3-Clause"}},
		{"BSD in a comment of C", "/*\n * " + strings.ReplaceAll(bsd3, "\n", "\n * ") + "\n */", []string{"BSD-3-Clause"}},
		{"MPL-2.0, which names the GPL", mpl, []string{"MPL-2.0"}},
		{"one licence for each part", mit + apache + mit, []string{"Apache-2.0", "MIT"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := recognize(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("licences (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecognizeRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"GPL", "GNU GENERAL PUBLIC LICENSE\nVersion 2, June 1991\n" + gnu, "GPL"},
		{"AGPL", "GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3, 19 November 2007\n" + gnu, "AGPL"},
		{"LGPL", "GNU LESSER GENERAL PUBLIC LICENSE\nVersion 2.1, February 1999\n" + gnu, "LGPL"},
		{"GPL by reference", "you can redistribute it and/or modify it\nunder the terms of the GNU General Public License", "GPL"},
		{"GPL beside MIT", mit + gnu, "GPL"},
		{"four clauses of BSD", bsd4, "BSD-4-Clause"},
		{"a rider on a free licence", "\"Commons Clause\" License Condition v1.0\n" + apache, "Commons Clause"},
		{"words of our own", "Use it as you like.", "unknown"},
		{"an empty file", "", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids, err := recognize(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q and error %v, want an error that says %s", ids, err, c.want)
			}
		})
	}
}

func TestReadLicence(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"LICENSE.md":           mit,
		"LICENSE-APACHE":       apache,
		"NOTICE":               "Made by others.",
		"license.go":           "package license",
		"licenses/GPL":         gnu,
		"third/LICENCE":        bsd3,
		"third/PATENTS":        "No suits.",
		"third/COPYING.txt":    isc,
		"unlinked/LICENSE":     gnu,
		"third/licence_x.json": "{}",
	} {
		write(t, filepath.Join(dir, path), content)
	}
	got, err := readLicence(dir, []string{".", "third"})
	if err != nil {
		t.Fatal(err)
	}
	want := licence{
		ids:   []string{"Apache-2.0", "BSD-3-Clause", "ISC", "MIT"},
		files: []string{"LICENSE-APACHE", "LICENSE.md", "NOTICE", "third/COPYING.txt", "third/LICENCE", "third/PATENTS"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(licence{})); diff != "" {
		t.Errorf("licence (-want +got):\n%s", diff)
	}
	if _, err := readLicence(dir, []string{".", "third", "unlinked"}); err == nil || !strings.Contains(err.Error(), "unlinked/LICENSE") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestReadLicenceWantsOneAtTheTop(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "part", "LICENSE"), mit)
	write(t, filepath.Join(dir, "NOTICE"), "Made by others.")
	if got, err := readLicence(dir, []string{".", "part"}); err == nil || !strings.Contains(err.Error(), "no LICENSE") {
		t.Errorf("got %+v and error %v, want an error: the module as a whole has no licence", got, err)
	}
}

func TestLicenceTableOfThisRepository(t *testing.T) {
	out, err := call(t, "licences")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"MODULE", "VERSION", "LICENCE"},
		{"golang.zx2c4.com/wireguard", "v0.0.0-", "MIT"},
		{"k8s.io/utils", "v0.0.0-", "Apache-2.0 AND BSD-3-Clause"},
	} {
		if !hasRow(out, want) {
			t.Errorf("no row %q in:\n%s", want, out)
		}
	}
}

// hasRow reports whether a line has this first and last column, and this beginning of the
// second one.
func hasRow(table string, want []string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[0] == want[0] && strings.HasPrefix(fields[1], want[1]) &&
			strings.Join(fields[2:], " ") == want[2] {
			return true
		}
	}
	return false
}

func TestLicenceTextsOfThisRepository(t *testing.T) {
	file := filepath.Join(t.TempDir(), "texts")
	out, err := call(t, "licences", "-texts", "-o", file)
	if err != nil {
		t.Fatal(err)
	}
	if out != "" {
		t.Errorf("printed %q, want everything in the file", out)
	}
	texts := read(t, file)
	for _, want := range []string{
		"==== golang.zx2c4.com/wireguard v",
		"==== github.com/prometheus/client_golang v",
		": internal/github.com/golang/gddo/LICENSE\n",
		": NOTICE\n",
		"Permission is hereby granted, free of charge",
	} {
		if !strings.Contains(texts, want) {
			t.Errorf("the texts lack %q", want)
		}
	}
}
