package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// ownLicence is the licence of this project, as the file LICENSE has it.
const ownLicence = "Apache-2.0"

// sbomCommand writes the bill of materials of the programs.
func sbomCommand(ctx context.Context, in invocation) error {
	version := in.flags.String("version", "devel", "`version` of the programs")
	file := in.flags.String("o", "", "write into this `file`")
	if err := in.parse(0); err != nil {
		return err
	}
	stamp, err := timestamp(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	found, err := takeInventory(ctx, in.root)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetEscapeHTML(false).SetPretty(true)
	if err := encoder.EncodeVersion(billOfMaterials(found, *version, stamp), cyclonedx.SpecVersion1_6); err != nil {
		return err
	}
	return in.emit(*file, out.Bytes())
}

// timestamp formats seconds since 1970, as SOURCE_DATE_EPOCH has them
// (https://reproducible-builds.org/specs/source-date-epoch/). Without them a
// document has no time, so that the same source always gives the same bytes.
func timestamp(epoch string) (string, error) {
	if epoch == "" {
		return "", nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return "", fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339), nil
}

// billOfMaterials describes the programs of a version. A program depends on all
// modules that it links, a module on those that its linked packages import.
func billOfMaterials(found inventory, version, stamp string) *cyclonedx.BOM {
	project := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, Name: found.module, Version: version,
		PackageURL: purl(found.module, version), Licenses: choices([]string{ownLicence}),
	}
	project.BOMRef = project.PackageURL
	refs := map[string]string{}
	var components []cyclonedx.Component
	for _, p := range found.programs {
		of := project
		of.Name = path.Base(p.path)
		of.PackageURL += "#" + strings.TrimPrefix(p.path, found.module+"/")
		of.BOMRef = of.PackageURL
		refs[p.path] = of.BOMRef
		components = append(components, of)
	}
	for _, m := range found.modules {
		refs[m.path] = purl(m.path, m.version)
		c := cyclonedx.Component{
			Type: cyclonedx.ComponentTypeLibrary, BOMRef: refs[m.path], Name: m.path, Version: m.version,
			PackageURL: refs[m.path], Licenses: choices(m.licence.ids),
		}
		if m.sum != "" {
			// Not one of the document's hashes: those are of a file, this is of
			// a list of files (https://go.dev/ref/mod#go-sum-files).
			c.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: m.sum}}
		}
		components = append(components, c)
	}
	var dependencies []cyclonedx.Dependency
	depend := func(ref string, paths []string) {
		on := make([]string, len(paths))
		for i, path := range paths {
			on[i] = refs[path]
		}
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	var programs []string
	for _, p := range found.programs {
		programs = append(programs, p.path)
	}
	depend(project.BOMRef, programs)
	for _, p := range found.programs {
		depend(refs[p.path], p.modules)
	}
	for _, m := range found.modules {
		depend(refs[m.path], m.imports)
	}
	doc := cyclonedx.NewBOM()
	doc.Metadata = &cyclonedx.Metadata{Timestamp: stamp, Component: &project}
	doc.Components, doc.Dependencies = &components, &dependencies
	return doc
}

// purl returns the package URL of a module, which is in lower case
// (https://github.com/package-url/purl-spec, type golang).
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + url.QueryEscape(version)
}

func choices(ids []string) *cyclonedx.Licenses {
	if len(ids) == 1 {
		return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: ids[0]}}}
	}
	return &cyclonedx.Licenses{{Expression: licence{ids: ids}.expression()}}
}
