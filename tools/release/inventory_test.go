package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listing is what go list prints of a program that uses a, which uses b's inner
// package.
const listing = `
{"ImportPath": "fmt", "Name": "fmt", "Standard": true, "DepOnly": true}
{"ImportPath": "example.org/b/x/y", "Dir": "/m/b/x/y", "Name": "y", "DepOnly": true, "Imports": ["fmt"],
 "Module": {"Path": "example.org/b", "Version": "v0.2.0", "Sum": "h1:b", "Dir": "/m/b"}}
{"ImportPath": "example.org/a", "Dir": "/m/a", "Name": "a", "DepOnly": true, "Imports": ["example.org/b/x/y", "C"],
 "Module": {"Path": "example.org/a", "Version": "v1.0.0", "Sum": "h1:a", "Dir": "/m/a"}}
{"ImportPath": "example.org/ours/inner", "Dir": "/ours/inner", "Name": "inner", "DepOnly": true, "Imports": ["example.org/a"],
 "Module": {"Path": "example.org/ours", "Main": true, "Dir": "/ours"}}
{"ImportPath": "example.org/ours/cmd/one", "Dir": "/ours/cmd/one", "Name": "main", "Imports": ["example.org/ours/inner"],
 "Module": {"Path": "example.org/ours", "Main": true, "Dir": "/ours"}}
`

// elsewhere is the same program on a platform where it links c besides.
const elsewhere = `
{"ImportPath": "example.org/c", "Dir": "/m/c", "Name": "c", "DepOnly": true,
 "Module": {"Path": "example.org/c", "Version": "v3.0.0", "Sum": "h1:c", "Dir": "/m/c"}}
{"ImportPath": "example.org/ours/cmd/one", "Dir": "/ours/cmd/one", "Name": "main", "Imports": ["example.org/c"],
 "Module": {"Path": "example.org/ours", "Main": true, "Dir": "/ours"}}
`

func TestLinksGatherModulesOfAllPlatforms(t *testing.T) {
	links := newLinks(module{path: stdlib, version: "1.2.3", dir: "/go"})
	for _, list := range []string{listing, elsewhere} {
		if err := links.add(strings.NewReader(list)); err != nil {
			t.Fatal(err)
		}
	}
	want := inventory{
		module: "example.org/ours",
		programs: []program{{
			path:    "example.org/ours/cmd/one",
			modules: []string{"example.org/a", "example.org/b", "example.org/c", stdlib},
		}},
		modules: []module{
			{path: "example.org/a", version: "v1.0.0", sum: "h1:a", dir: "/m/a", folders: []string{"."}, imports: []string{"example.org/b"}},
			{path: "example.org/b", version: "v0.2.0", sum: "h1:b", dir: "/m/b", folders: []string{".", "x", "x/y"}, imports: []string{stdlib}},
			{path: "example.org/c", version: "v3.0.0", sum: "h1:c", dir: "/m/c", folders: []string{"."}},
			{path: stdlib, version: "1.2.3", dir: "/go", folders: []string{"."}},
		},
	}
	if diff := cmp.Diff(want, links.inventory(), cmp.AllowUnexported(inventory{}, program{}, module{}, licence{})); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

func TestLinksRefuseWhatCannotBeNamed(t *testing.T) {
	for _, c := range []struct{ name, list, want string }{
		{"a module replaced by a fork", `{"ImportPath": "example.org/a", "Module": {"Path": "example.org/a", "Version": "v1.0.0", "Replace": {"Path": "example.org/fork", "Version": "v1.0.1"}}}`, "example.org/a is replaced"},
		{"a module without a version", `{"ImportPath": "example.org/a", "Module": {"Path": "example.org/a"}}`, "example.org/a is replaced"},
		{"a package without a module", `{"ImportPath": "example.org/a"}`, "no module"},
		{"a package outside its module", `{"ImportPath": "example.org/a", "Dir": "/m/b", "Module": {"Path": "example.org/a", "Version": "v1.0.0", "Dir": "/m/a"}}`, "outside"},
		{"a listing cut short", `{"ImportPath": "example.org/a"`, "unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := newLinks(module{path: stdlib}).add(strings.NewReader(c.list))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

// TestInventoryOfThisRepository holds the inventory against what we know of our
// programs.
func TestInventoryOfThisRepository(t *testing.T) {
	found, err := takeInventory(t.Context(), filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]module{}
	for _, m := range found.modules {
		modules[m.path] = m
		if m.path != stdlib && !strings.HasPrefix(m.sum, "h1:") {
			t.Errorf("%s has no sum", m.path)
		}
	}
	for path, licence := range map[string]string{
		"golang.zx2c4.com/wireguard":          "MIT",
		"golang.zx2c4.com/wireguard/wgctrl":   "MIT",
		"k8s.io/client-go":                    "Apache-2.0 AND BSD-3-Clause AND MIT", // Helm links its copies of Go's templates and of httpcache
		"k8s.io/apimachinery":                 "Apache-2.0 AND BSD-3-Clause",         // it holds code of Go's
		"github.com/prometheus/client_golang": "Apache-2.0 AND BSD-3-Clause",
		"sigs.k8s.io/yaml":                    "Apache-2.0 AND BSD-3-Clause AND MIT",
		stdlib:                                "BSD-3-Clause",
	} {
		if got := modules[path].licence.expression(); got != licence {
			t.Errorf("licence of %s: %q, want %q", path, got, licence)
		}
	}
	for _, path := range []string{"github.com/google/go-cmp", "go.uber.org/goleak", found.module} {
		if _, linked := modules[path]; linked {
			t.Errorf("%s is in the inventory, but no program links it from elsewhere", path)
		}
	}
	wireguard := map[string]bool{}
	for _, p := range found.programs {
		wireguard[strings.TrimPrefix(p.path, found.module+"/cmd/")] = slices.Contains(p.modules, "golang.zx2c4.com/wireguard")
	}
	want := map[string]bool{"semaphore-engine": true, "semaphore-wireguard": false, "semaphore-controllers": false, "semaphorectl": false}
	if diff := cmp.Diff(want, wireguard); diff != "" {
		t.Errorf("programs that link wireguard-go (-want +got):\n%s", diff)
	}
}

// TestAgentsLinkNoClientset: client-go's clientset, whatever imports it, brings along the
// types of all groups of Kubernetes, which would be a third of a program that runs on
// every node.
func TestAgentsLinkNoClientset(t *testing.T) {
	unwanted := regexp.MustCompile(`(?m)^k8s\.io/client-go/(kubernetes|applyconfigurations|tools/leaderelection)(/.*)?$`)
	for program, want := range map[string]bool{"semaphore-wireguard": false, "semaphore-controllers": true} {
		linked, err := goOutput(t.Context(), filepath.Join("..", ".."), []string{"CGO_ENABLED=0"}, "list", "-deps", "./cmd/"+program)
		if err != nil {
			t.Fatal(err)
		}
		if found := unwanted.FindAllString(linked, -1); len(found) > 0 != want {
			t.Errorf("%s links %q", program, found)
		}
	}
}
