package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// packagedPrograms are those that the machine can have besides what is tested: the
// Debian package of each, the programs of it, and what these open by themselves.
var packagedPrograms = map[string]struct {
	pkg      string
	programs []string
	folders  []string
}{
	"iptables": {
		pkg: "iptables",
		programs: []string{
			"/usr/sbin/iptables", "/usr/sbin/iptables-save", "/usr/sbin/iptables-restore",
			"/usr/sbin/ip6tables", "/usr/sbin/ip6tables-save", "/usr/sbin/ip6tables-restore",
		},
		folders: []string{"/usr/lib/x86_64-linux-gnu/xtables"},
	},
	"ipset": {pkg: "ipset", programs: []string{"/usr/sbin/ipset"}},
}

// programModules are the modules that a program expects, and that a machine which has
// no modprobe has to have from the beginning: of kube-proxy in IPVS mode.
var programModules = map[string][]string{
	"iptables": {"nft_compat", "xt_comment", "xt_mark", "xt_MASQUERADE", "xt_conntrack", "xt_addrtype", "xt_tcpudp", "ipt_REJECT", "ip6t_REJECT"},
	"ipset": {
		"xt_set", "ip_set_bitmap_port", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet",
	},
	"kube-proxy": {"ip_vs", "ip_vs_rr", "nf_conntrack"},
}

// modulesFor returns the modules for programs, which are separated by commas.
func modulesFor(programs string) (modules []string) {
	for name := range strings.SplitSeq(programs, ",") {
		modules = append(modules, programModules[name]...)
	}
	return modules
}

// programs returns the files that make the named programs run in the machine, by
// their names there. What isn't Debian's is built as a tool of the testbed.
func (d debian) programs(ctx context.Context, names []string) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range names {
		packaged, ok := packagedPrograms[name]
		if !ok {
			built, err := tools.Build(ctx, d.log, name)
			if err != nil {
				return nil, err
			}
			files["/usr/bin/"+name] = built[name]
			continue
		}
		if err := d.install(ctx, map[string]string{packaged.programs[0]: packaged.pkg}); err != nil {
			return nil, err
		}
		wanted := slices.Clone(packaged.programs)
		for _, folder := range packaged.folders {
			entries, err := os.ReadDir(folder)
			if err != nil {
				return nil, err
			}
			for _, entry := range entries {
				wanted = append(wanted, filepath.Join(folder, entry.Name()))
			}
		}
		for _, file := range wanted {
			files[file] = file
		}
		for _, program := range packaged.programs {
			libraries, err := libraries(ctx, program)
			if err != nil {
				return nil, err
			}
			for _, library := range libraries {
				files[library] = library
			}
		}
	}
	return files, nil
}

// libraries returns the shared libraries of a program, its loader among them.
func libraries(ctx context.Context, program string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, withStderr(err))
	}
	return parseLdd(string(out)), nil
}

// lddFile finds the file in a line of ldd: "libc.so.6 => /lib/libc.so.6 (0x7f…)", or
// "/lib64/ld-linux-x86-64.so.2 (0x7f…)".
var lddFile = regexp.MustCompile(`(/\S+) \(0x[0-9a-f]+\)$`)

func parseLdd(out string) (files []string) {
	for line := range strings.Lines(out) {
		if found := lddFile.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
			files = append(files, found[1])
		}
	}
	return files
}
