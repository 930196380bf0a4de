package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kernelPackage is the Debian package that depends on the current kernel.
const kernelPackage = "linux-image-amd64"

// debian gets what the machine is made of from Debian's packages.
type debian struct {
	// cache is the folder that keeps unpacked kernels, one subfolder for each
	// version.
	cache string
	// log receives progress and what apt prints.
	log io.Writer
}

// kernel is an unpacked kernel package.
type kernel struct {
	// version is the name and version of the package.
	version string
	// image is the file to boot, modules the folder of /lib/modules/<release>.
	image, modules string
}

// install makes sure that each program exists; where one doesn't, the package
// that has it is installed. programs maps program to package.
func (d debian) install(ctx context.Context, programs map[string]string) error {
	var missing []string
	for program, pkg := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	missing = slices.Compact(missing)
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing and only root may install them: apt-get install %s",
			strings.Join(missing, " "))
	}
	fmt.Fprintf(d.log, "installing %s\n", strings.Join(missing, " "))
	args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)
	return d.withUpdate(ctx, func() error {
		return d.run(ctx, "", "apt-get", args...)
	})
}

// kernel returns the newest kernel in the cache. When there is none, or with
// refresh, it is the one that Debian has now, downloaded if need be.
func (d debian) kernel(ctx context.Context, refresh bool) (kernel, error) {
	if !refresh {
		if k, ok := newestKernel(d.cache); ok {
			return k, nil
		}
	}
	var k kernel
	err := d.withUpdate(ctx, func() error {
		var err error
		k, err = d.download(ctx)
		return err
	})
	return k, err
}

// download unpacks the current kernel package into the cache, unless it is
// there. The folder gets its name last, so it is always complete, and two
// downloads side by side don't disturb each other.
func (d debian) download(ctx context.Context) (kernel, error) {
	pkg, err := d.currentKernel(ctx)
	if err != nil {
		return kernel{}, err
	}
	if err := os.MkdirAll(d.cache, 0o755); err != nil {
		return kernel{}, fmt.Errorf("create cache: %w", err)
	}
	temp, err := os.MkdirTemp(d.cache, ".new-")
	if err != nil {
		return kernel{}, fmt.Errorf("create cache: %w", err)
	}
	defer os.RemoveAll(temp)
	// apt drops root's rights for the download and then needs to enter.
	if err := os.Chmod(temp, 0o755); err != nil {
		return kernel{}, fmt.Errorf("create cache: %w", err)
	}
	fmt.Fprintf(d.log, "downloading %s\n", pkg)
	if err := d.run(ctx, temp, "apt-get", "download", "-q", pkg); err != nil {
		return kernel{}, err
	}
	files, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil || len(files) != 1 {
		return kernel{}, fmt.Errorf("download %s: %d packages arrived, want 1", pkg, len(files))
	}
	version := strings.TrimSuffix(filepath.Base(files[0]), ".deb")
	tree := filepath.Join(temp, "tree")
	if err := d.run(ctx, "", "dpkg-deb", "-x", files[0], tree); err != nil {
		return kernel{}, err
	}
	if _, err := findKernel(tree); err != nil {
		return kernel{}, fmt.Errorf("package %s: %w", version, err)
	}
	final := filepath.Join(d.cache, version)
	if err := os.Rename(tree, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return kernel{}, fmt.Errorf("keep kernel: %w", err)
	}
	return findKernel(final)
}

// currentKernel asks apt for the package behind kernelPackage, whose name has
// the kernel's version in it.
func (d debian) currentKernel(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", kernelPackage).Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for %s: %w", kernelPackage, withStderr(err))
	}
	return parseDepends(string(out))
}

// parseDepends reads the kernel's package from the output of apt-cache depends.
func parseDepends(out string) (string, error) {
	for line := range strings.Lines(out) {
		_, name, ok := strings.Cut(line, "Depends: ")
		name = strings.TrimSpace(name)
		if ok && strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s depends on no kernel", kernelPackage)
}

// withUpdate does what needs the package lists. When it goes wrong, the lists
// are fetched and it is tried once more: they may be missing, as in a new
// container, or so old that what they name is gone.
func (d debian) withUpdate(ctx context.Context, do func() error) error {
	first := do()
	if first == nil || ctx.Err() != nil {
		return first
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w (as root, apt-get update may help)", first)
	}
	fmt.Fprintf(d.log, "%v: updating the package lists\n", first)
	if err := d.run(ctx, "", "apt-get", "update", "-q"); err != nil {
		return errors.Join(first, err)
	}
	return do()
}

func (d debian) run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = waitDelay
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// newestKernel returns the complete kernel in the cache that was packaged last:
// dpkg-deb gives folders the times that the package says.
func newestKernel(cache string) (kernel, bool) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return kernel{}, false
	}
	var found []fs.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			found = append(found, info)
		}
	}
	slices.SortFunc(found, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), strings.Compare(b.Name(), a.Name()))
	})
	for _, info := range found {
		if k, err := findKernel(filepath.Join(cache, info.Name())); err == nil {
			return k, true
		}
	}
	return kernel{}, false
}

// findKernel finds image and modules in an unpacked package.
func findKernel(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("%d kernel images in %s, want 1", len(images), dir)
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	// Where a Debian release has merged /usr the modules may be packaged there.
	for _, lib := range []string{"lib", "usr/lib"} {
		modules := filepath.Join(dir, lib, "modules", release)
		if info, err := os.Stat(modules); err == nil && info.IsDir() {
			return kernel{version: filepath.Base(dir), image: images[0], modules: modules}, nil
		}
	}
	return kernel{}, fmt.Errorf("no modules of %s in %s", release, dir)
}
