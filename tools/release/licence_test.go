package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The licences' texts, or where these are long the notices that name them.
const (
	apache = `Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in
compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or
implied. See the License for the specific language governing permissions and limitations under the
License.
`
	mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN
NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`
	isc = `Permission to use, copy, modify, and distribute this software for any purpose with or without fee is
hereby granted, provided that the above copyright notice and this permission notice appear in all
copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE
INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE
FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM
LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION,
ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`
	bsdGrant = `Redistribution and use in source and binary forms, with or without modification, are permitted
provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and
   the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions
   and the following disclaimer in the documentation and/or other materials provided with the
   distribution.

`
	bsdNames = `3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse
   or promote products derived from this software without specific prior written permission.

`
	bsdAdverts = `3. All advertising materials mentioning features or use of this software must display the following
   acknowledgement: This product includes software developed by the organization.

4. Neither the name of the copyright holder nor the names of its contributors may be used to endorse
   or promote products derived from this software without specific prior written permission.

`
	bsdDisclaimer = `THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED
WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A
PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR
ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT
LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS
INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR
TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF
ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
`
	bsd2 = bsdGrant + bsdDisclaimer
	bsd3 = bsdGrant + bsdNames + bsdDisclaimer
	bsd4 = bsdGrant + bsdAdverts + bsdDisclaimer
	mpl  = `This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0. If a copy of the
MPL was not distributed with this file, You can obtain one at http://mozilla.org/MPL/2.0/.
`
	gnu = `This program is free software; you can redistribute it and/or modify it under the terms of the GNU
General Public License as published by the Free Software Foundation; either version 2 of the License,
or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even
the implied warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public
License for more details.
`
	commons = `"Commons Clause" License Condition v1.0

The Software is provided to you by the Licensor under the License, as defined below, subject to the
following condition.

Without limiting other conditions in the License, the grant of rights under the License will not
include, and the License does not grant to you, the right to Sell the Software.

For purposes of the foregoing, "Sell" means practicing any or all of the rights granted to you under
the License to provide to third parties, for a fee or other consideration, a product or service that
consists, entirely or substantially, of the Software or the functionality of the Software. Any license
notice or attribution required by the License must also include this Commons Cause License Condition
notice.
`
)

func TestRecognize(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"Apache-2.0 by reference", apache, []string{"Apache-2.0"}},
		{"MIT", "Copyright (c) 2026 Others\n\n" + mit, []string{"MIT"}},
		{"MIT in capitals and another line length", strings.ToUpper(strings.ReplaceAll(mit, " ", "\n")), []string{"MIT"}},
		{"ISC", isc, []string{"ISC"}},
		{"ISC with and/or", strings.Replace(isc, "and distribute", "and/or distribute", 1), []string{"ISC"}},
		{"two clauses of BSD", bsd2, []string{"BSD-2-Clause"}},
		{"three clauses of BSD", bsd3, []string{"BSD-3-Clause"}},
		{"BSD in a comment of C", "/*\n * " + strings.ReplaceAll(bsd3, "\n", "\n * ") + "\n */", []string{"BSD-3-Clause"}},
		{"MPL-2.0", mpl, []string{"MPL-2.0"}},
		{"one licence for each part", mit + apache + mit, []string{"Apache-2.0", "MIT"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := recognize([]byte(c.text))
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
		{"GPL", gnu, "GPL"},
		{"AGPL", strings.ReplaceAll(strings.ReplaceAll(gnu, "General", "Affero General"), "version 2", "version 3"), "AGPL"},
		{"LGPL", strings.ReplaceAll(strings.ReplaceAll(gnu, "General", "Lesser General"), "version 2", "version 2.1"), "LGPL"},
		{"GPL beside MIT", mit + gnu, "GPL"},
		{"four clauses of BSD", bsd4, "BSD-4-Clause"},
		{"a rider on a free licence", commons + apache, "CommonsClause"},
		{"a rider of our own on a free licence", mit + strings.Repeat("The Software must not be sold, nor used on Sundays. ", 10), "unknown"},
		{"words of our own", "Use it as you like.", "unknown"},
		{"an empty file", "", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids, err := recognize([]byte(c.text))
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
		"LICENSE.docs":         gnu,
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
