package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// The parts of a CycloneDX 1.6 document that we fill in
// (https://cyclonedx.org/docs/1.6/json/).
type (
	document struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp,omitempty"` // RFC 3339
		Component component `json:"component"`
	}
	component struct {
		Type       string          `json:"type"`
		Ref        string          `json:"bom-ref"`
		Name       string          `json:"name"`
		Version    string          `json:"version"`
		Licences   []licenceChoice `json:"licenses"`
		PURL       string          `json:"purl"`
		Properties []property      `json:"properties,omitempty"`
	}
	// A licenceChoice holds either a single licence or an expression.
	licenceChoice struct {
		Licence    *licenceID `json:"license,omitempty"`
		Expression string     `json:"expression,omitempty"`
	}
	licenceID struct {
		ID string `json:"id"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
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
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(billOfMaterials(found, *version, stamp)); err != nil {
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
func billOfMaterials(found inventory, version, stamp string) document {
	project := component{
		Type: "application", Name: found.module, Version: version,
		PURL: purl(found.module, version), Licences: choices([]string{ownLicence}),
	}
	project.Ref = project.PURL
	doc := document{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{Timestamp: stamp, Component: project},
	}
	refs := map[string]string{}
	for _, m := range found.modules {
		refs[m.path] = purl(m.path, m.version)
	}
	depend := func(ref string, paths []string) {
		on := make([]string, len(paths))
		for i, path := range paths {
			on[i] = refs[path]
		}
		doc.Dependencies = append(doc.Dependencies, dependency{Ref: ref, DependsOn: on})
	}
	for _, p := range found.programs {
		of := project
		of.Name = path.Base(p.path)
		of.PURL += "#" + strings.TrimPrefix(p.path, found.module+"/")
		of.Ref = of.PURL
		refs[p.path] = of.Ref
		doc.Components = append(doc.Components, of)
	}
	for _, m := range found.modules {
		c := component{
			Type: "library", Ref: refs[m.path], Name: m.path, Version: m.version,
			PURL: refs[m.path], Licences: choices(m.licence.ids),
		}
		if m.sum != "" {
			// Not one of the document's hashes: those are of a file, this is of
			// a list of files (https://go.dev/ref/mod#go-sum-files).
			c.Properties = []property{{Name: "go.sum", Value: m.sum}}
		}
		doc.Components = append(doc.Components, c)
	}
	var programs []string
	for _, p := range found.programs {
		programs = append(programs, p.path)
	}
	depend(project.Ref, programs)
	for _, p := range found.programs {
		depend(refs[p.path], p.modules)
	}
	for _, m := range found.modules {
		depend(refs[m.path], m.imports)
	}
	return doc
}

// purl returns the package URL of a module, which is in lower case
// (https://github.com/package-url/purl-spec, type golang).
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + url.QueryEscape(version)
}

func choices(ids []string) []licenceChoice {
	if len(ids) == 1 {
		return []licenceChoice{{Licence: &licenceID{ID: ids[0]}}}
	}
	return []licenceChoice{{Expression: licence{ids: ids}.expression()}}
}
