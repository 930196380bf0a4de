package main

import (
	"context"
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// image is a built image whose files are at root.
type image struct {
	root, arch string
	config     string // architecture and user, as its configuration says
}

// certificates is where the programs look for the authorities of the system.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// licences is where the licences are of what the programs link.
const licences = "usr/share/doc/kube-semaphore/third-party-licences.txt"

// shortestLicence is a length that no text of a licence falls short of.
const shortestLicence = 300

// machines are the architectures that we know, in ELF's words.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// inspect reports all that is wrong with the image, and prints its size. With run
// it also runs the programs, whose -version must name the build.
func (i *image) inspect(ctx context.Context, run bool, build string) error {
	var errs []error
	if want := i.arch + " 65532:65532"; i.config != want {
		errs = append(errs, fmt.Errorf("its configuration says %q, expected %q", i.config, want))
	}
	errs = append(errs, i.files(), i.authorities())
	for _, program := range programs {
		errs = append(errs, i.binary(program), i.licensed(program))
		if run {
			errs = append(errs, i.runs(ctx, program, build))
		}
	}
	return errors.Join(errs...)
}

// files checks that the image holds what it must and nothing else.
func (i *image) files() error {
	want := []string{"LICENSE", certificates, licences, "bin/" + controllers}
	for _, program := range programs {
		want = append(want, "bin/"+program)
	}
	slices.Sort(want)
	var (
		have []string
		size int64
	)
	err := filepath.WalkDir(i.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(i.root, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		have = append(have, name)
		size += info.Size()
		fmt.Printf("  %6.1f MB  %s\n", float64(info.Size())/1e6, name)
		return nil
	})
	fmt.Printf("  %6.1f MB  in all\n", float64(size)/1e6)
	for _, link := range links {
		if to, linkErr := os.Readlink(filepath.Join(i.root, "bin", link)); linkErr != nil || to != controllers {
			err = errors.Join(err, fmt.Errorf("bin/%s: no link to %s: %q, %w", link, controllers, to, linkErr))
		}
	}
	slices.Sort(have)
	if err == nil && !slices.Equal(have, want) {
		err = fmt.Errorf("it holds %q, expected %q", have, want)
	}
	return err
}

// authorities checks that a program finds authorities to trust.
func (i *image) authorities() error {
	content, err := os.ReadFile(filepath.Join(i.root, certificates))
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(content) {
		err = errors.New("no certificate in " + certificates)
	}
	return err
}

// binary checks that a program is one of the architecture that needs no library.
func (i *image) binary(program string) error {
	file, err := elf.Open(filepath.Join(i.root, "bin", program))
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	defer func() { _ = file.Close() }() // Only read.
	if want := machines[i.arch]; file.Machine != want {
		return fmt.Errorf("%s: a program for %s, expected %s", program, file.Machine, want)
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return fmt.Errorf("%s: not static", program)
		}
	}
	return nil
}

// licensed checks that the image has the licence of Go and of each module that
// the Go tool wrote down in a program as linked.
func (i *image) licensed(program string) error {
	info, err := buildinfo.ReadFile(filepath.Join(i.root, "bin", program))
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	texts, err := os.ReadFile(filepath.Join(i.root, licences))
	if err != nil {
		return err
	}
	headings := []string{"stdlib " + strings.TrimPrefix(info.GoVersion, "go")}
	for _, module := range info.Deps {
		headings = append(headings, module.Path+" "+module.Version)
	}
	for _, heading := range headings {
		_, text, found := strings.Cut(string(texts), "==== "+heading+": ")
		text, _, _ = strings.Cut(text, "\n==== ")
		if !found || len(text) < shortestLicence {
			err = errors.Join(err, fmt.Errorf("%s: no licence of %s in %s", program, heading, licences))
		}
	}
	return err
}

// runs runs a program's -version and -help with the image as its root, as the
// image's user.
func (i *image) runs(ctx context.Context, program, build string) error {
	settings := []string{"SEMAPHORE_CLUSTER_NAME", "SEMAPHORE_REMOTES"}
	if program == "semaphore-engine" { // knows nothing of clusters
		settings = []string{"SEMAPHORE_LOG_LEVEL", "SEMAPHORE_LOG_FORMAT"}
	}
	for argument, want := range map[string][]string{
		"-version": {build},
		"-help":    append(settings, program),
	} {
		cmd := exec.CommandContext(ctx, "/bin/"+program, argument)
		cmd.Dir = "/"
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w\n%s", program, argument, err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				return fmt.Errorf("%s %s doesn't print %q:\n%s", program, argument, w, out)
			}
		}
		if argument == "-version" {
			fmt.Printf("  %s -version: %s", program, out)
		}
	}
	return nil
}
