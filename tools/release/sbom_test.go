package main

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// decode reads a document strictly: all of its fields are those of CycloneDX.
func decode(t *testing.T, content string) *cyclonedx.BOM {
	t.Helper()
	doc := new(cyclonedx.BOM)
	decoder := json.NewDecoder(strings.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestBillOfMaterialsOfThisRepository(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	first, err := call(t, "sbom", "-version", "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sbom.json")
	if _, err := call(t, "sbom", "-version", "v1.2.3", "-o", file); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, read(t, file)); diff != "" {
		t.Errorf("the same source gave two documents:\n%s", diff)
	}

	doc := decode(t, first)
	if doc.BOMFormat != "CycloneDX" || doc.SpecVersion != cyclonedx.SpecVersion1_6 || doc.Version != 1 {
		t.Errorf("the document calls itself %s %s, version %d", doc.BOMFormat, doc.SpecVersion, doc.Version)
	}
	if doc.Metadata.Timestamp != "" {
		t.Errorf("without SOURCE_DATE_EPOCH the document has a timestamp: %s", doc.Metadata.Timestamp)
	}
	gosum := read(t, filepath.Join("..", "..", "go.sum"))
	refs := map[string]bool{doc.Metadata.Component.BOMRef: true}
	names := map[string]bool{}
	for _, c := range *doc.Components {
		if refs[c.BOMRef] {
			t.Errorf("two components are called %s", c.BOMRef)
		}
		refs[c.BOMRef], names[c.Name] = true, true
		if l := *c.Licenses; len(l) != 1 || (l[0].License == nil) == (l[0].Expression == "") {
			t.Errorf("%s has licences %+v, want one or an expression", c.Name, l)
		}
		switch {
		case c.Type == "application" || c.Name == stdlib:
			if c.Properties != nil {
				t.Errorf("%s has properties %v", c.Name, c.Properties)
			}
		case c.Properties == nil || !strings.Contains(gosum, c.Name+" "+c.Version+" "+(*c.Properties)[0].Value+"\n"):
			t.Errorf("%s %s has properties %v, want its line of go.sum", c.Name, c.Version, c.Properties)
		case c.PackageURL != "pkg:golang/"+strings.ToLower(c.Name)+"@"+url.QueryEscape(c.Version):
			t.Errorf("%s %s has the package URL %s", c.Name, c.Version, c.PackageURL)
		}
	}
	for _, name := range []string{
		"semaphore-engine", "semaphore-wireguard", "semaphore-controllers",
		"golang.zx2c4.com/wireguard", "golang.zx2c4.com/wireguard/wgctrl", "k8s.io/client-go", stdlib,
	} {
		if !names[name] {
			t.Errorf("no component %s", name)
		}
	}
	for _, name := range []string{"github.com/google/go-cmp", "go.uber.org/goleak"} {
		if names[name] {
			t.Errorf("%s serves tests only", name)
		}
	}
	said := map[string]bool{}
	for _, d := range *doc.Dependencies {
		said[d.Ref] = true
		refersTo := []string{d.Ref}
		if d.Dependencies != nil {
			refersTo = append(refersTo, *d.Dependencies...)
		}
		for _, on := range refersTo {
			if !refs[on] {
				t.Errorf("%s depends on %s, which is no component", d.Ref, on)
			}
		}
	}
	if diff := cmp.Diff(refs, said); diff != "" {
		t.Errorf("components with dependencies (-want +got):\n%s", diff)
	}
}

func TestBillOfMaterials(t *testing.T) {
	found := inventory{
		module:   "example.org/Ours",
		programs: []program{{path: "example.org/Ours/cmd/one", modules: []string{"example.org/a", stdlib}}},
		modules: []module{
			{path: "example.org/a", version: "v2.0.0+incompatible", sum: "h1:a", imports: []string{stdlib}, licence: licence{ids: []string{"ISC", "MIT"}}},
			{path: stdlib, version: "1.2.3", licence: licence{ids: []string{"BSD-3-Clause"}}},
		},
	}
	own := &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	const (
		ours = "pkg:golang/example.org/ours@v1.0.0"
		one  = "pkg:golang/example.org/ours@v1.0.0#cmd/one"
		a    = "pkg:golang/example.org/a@v2.0.0%2Bincompatible"
		std  = "pkg:golang/stdlib@1.2.3"
	)
	want := cyclonedx.NewBOM()
	want.Metadata = &cyclonedx.Metadata{
		Timestamp: "2026-11-20T00:00:00Z",
		Component: &cyclonedx.Component{Type: "application", BOMRef: ours, Name: "example.org/Ours", Version: "v1.0.0", Licenses: own, PackageURL: ours},
	}
	want.Components = &[]cyclonedx.Component{
		{Type: "application", BOMRef: one, Name: "one", Version: "v1.0.0", Licenses: own, PackageURL: one},
		{
			Type: "library", BOMRef: a, Name: "example.org/a", Version: "v2.0.0+incompatible", PackageURL: a,
			Licenses: &cyclonedx.Licenses{{Expression: "ISC AND MIT"}}, Properties: &[]cyclonedx.Property{{Name: "go.sum", Value: "h1:a"}},
		},
		{
			Type: "library", BOMRef: std, Name: stdlib, Version: "1.2.3", PackageURL: std,
			Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "BSD-3-Clause"}}},
		},
	}
	want.Dependencies = &[]cyclonedx.Dependency{
		{Ref: ours, Dependencies: &[]string{one}},
		{Ref: one, Dependencies: &[]string{a, std}},
		{Ref: a, Dependencies: &[]string{std}},
		{Ref: std, Dependencies: &[]string{}},
	}
	if diff := cmp.Diff(want, billOfMaterials(found, "v1.0.0", "2026-11-20T00:00:00Z")); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestTimestamp(t *testing.T) {
	for _, c := range []struct{ name, epoch, want string }{
		{"not given", "", ""},
		{"seconds since 1970, whatever the time zone", "1795132800", "2026-11-20T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := timestamp(c.epoch)
			if err != nil || got != c.want {
				t.Errorf("got %q and error %v, want %q", got, err, c.want)
			}
		})
	}
	if got, err := timestamp("today"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("got %q and error %v, want an error that names the variable", got, err)
	}
}

// TestOwnLicence holds what the document says of us against the file.
func TestOwnLicence(t *testing.T) {
	got, err := readLicence(filepath.Join("..", ".."), []string{"."})
	if err != nil || got.expression() != ownLicence {
		t.Errorf("LICENSE is %q (error %v), the document says %q", got.expression(), err, ownLicence)
	}
}
