package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeModule is an ELF file that has a .modinfo section and nothing else.
func fakeModule(t *testing.T, info ...string) []byte {
	t.Helper()
	modinfo := strings.Join(info, "\x00") + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	const header, sectionHeader = 64, 64
	offset := uint64(header)
	namesOffset := offset + uint64(len(modinfo))
	sections := namesOffset + uint64(len(names))
	var out bytes.Buffer
	parts := []any{
		elf.Header64{
			Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:    uint16(elf.ET_REL),
			Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Shoff: sections, Ehsize: header, Shentsize: sectionHeader, Shnum: 3, Shstrndx: 2,
		},
		[]byte(modinfo), []byte(names),
		elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: offset, Size: uint64(len(modinfo))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: namesOffset, Size: uint64(len(names))},
	}
	for _, part := range parts {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(modules []module) []string {
	var list []string
	for _, m := range modules {
		list = append(list, m.name)
	}
	return list
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		files  map[string]string // file: an entry of its .modinfo
		wanted []string
		want   []string
		fail   string
	}{
		"what is needed comes first, once": {
			files: map[string]string{
				"net/wireguard.ko":   "depends=udp_tunnel,chacha-x86_64",
				"net/udp_tunnel.ko":  "depends=",
				"c/chacha-x86_64.ko": "depends=libchacha",
				"c/libchacha.ko":     "license=GPL",
				"net/vxlan.ko":       "depends=udp_tunnel",
			},
			wanted: []string{"vxlan", "wireguard", "vxlan"},
			want:   []string{"udp_tunnel", "vxlan", "libchacha", "chacha_x86_64", "wireguard"},
		},
		"dashes and underscores are the same": {
			files:  map[string]string{"a-b.ko": "depends=c_d", "c-d.ko": ""},
			wanted: []string{"a_b"},
			want:   []string{"c_d", "a_b"},
		},
		"built in modules are left out": {
			files:  map[string]string{"veth.ko": "depends=ipv6"},
			wanted: []string{"veth", "ipv6"},
			want:   []string{"veth"},
		},
		"soft dependencies where they exist": {
			files:  map[string]string{"a.ko": "softdep=pre: gone b post: c", "b.ko": "", "c.ko": ""},
			wanted: []string{"a"},
			want:   []string{"b", "a"},
		},
		"a soft dependency on an algorithm": {
			files:  map[string]string{"libsum.ko": "softdep=pre: sum", "sum_generic.ko": ""},
			wanted: []string{"libsum"},
			want:   []string{"sum_generic", "libsum"},
		},
		"a module that doesn't exist": {
			files: map[string]string{"a.ko": "depends=gone"}, wanted: []string{"a"}, fail: "needed by a: module gone",
		},
		"a circle": {
			files: map[string]string{"a.ko": "depends=b", "b.ko": "depends=a"}, wanted: []string{"a"}, fail: "depends on itself",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/net/ipv6/ipv6.ko\n"))
			write(t, filepath.Join(dir, "kernel", "modules.order"), nil)
			for file, info := range test.files {
				write(t, filepath.Join(dir, "kernel", file), fakeModule(t, "name=x", info))
			}
			tree, err := openModules(dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tree.resolve(context.Background(), test.wanted...)
			if test.fail != "" {
				if err == nil || !strings.Contains(err.Error(), test.fail) {
					t.Fatalf("error %v, want one that says %q", err, test.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, names(got)); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissingModuleIsNotExist(t *testing.T) {
	_, err := (&moduleTree{}).resolve(context.Background(), "gone")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestCompressedModulesAreUnpacked(t *testing.T) {
	image := fakeModule(t, "depends=")
	for suffix, pack := range map[string]string{".xz": "xz", ".gz": "gzip", "": "cat"} {
		if _, err := exec.LookPath(pack); err != nil {
			t.Fatalf("%s is needed: %v", pack, err)
		}
		cmd := exec.Command(pack, "-c")
		if pack == "cat" {
			cmd = exec.Command(pack)
		}
		cmd.Stdin = bytes.NewReader(image)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "m.ko"+suffix)
		write(t, file, packed)
		got, err := readModule(context.Background(), file)
		if err != nil || !bytes.Equal(got, image) {
			t.Errorf("%s: %d bytes of %d, %v", file, len(got), len(image), err)
		}
	}
	broken := filepath.Join(t.TempDir(), "m.ko.xz")
	write(t, broken, []byte("not compressed"))
	if _, err := readModule(context.Background(), broken); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("error %v, want one that names %s", err, broken)
	}
}

func TestModuleName(t *testing.T) {
	for file, want := range map[string]string{
		"kernel/drivers/net/veth.ko":  "veth",
		"x/chacha-x86_64.ko.xz":       "chacha_x86_64",
		"x/zstd.ko.zst":               "zstd",
		"kernel/modules.order":        "",
		"kernel/net/wireguard.ko.sig": "",
	} {
		got, ok := moduleName(file)
		if got != want && ok || ok != (want != "") {
			t.Errorf("%s: %q, %v", file, got, ok)
		}
	}
}

func FuzzDependencies(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(_ *testing.T, image []byte) {
		_, _, _ = dependencies(image)
	})
}
