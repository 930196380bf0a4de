// Command image checks the Dockerfile without access to a registry: it builds the image
// with buildah, on a substitute for the base image that contains this machine's Go, and
// runs the programs in the root file system of the image. It builds from a new repository
// with a copy of the working tree, whose version and revision the programs must print.
// Needs Debian and root; installs buildah and busybox-static if they are missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// Nothing else may be in /bin than programs, and controllers, to which the links lead.
var (
	links    = []string{"semaphore-policy", "semaphore-relay", "semaphore-service-mirror", "semaphore-tokens"}
	programs = append([]string{"semaphore-engine", "semaphore-wireguard"}, links...)
)

const controllers = "semaphore-controllers"

func main() {
	arch := flag.String("arch", "", "also build the image for this architecture, as in arm64, look at the programs without running them, and make one image of both")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := check(ctx, *arch)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, otherArch string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for mounts")
	}
	if err := install(ctx); err != nil {
		return err
	}
	b, err := newBuilder(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closing := b.close(context.WithoutCancel(ctx)); err == nil {
			err = closing
		}
	}()
	start := time.Now()
	if err := b.standIn(ctx); err != nil {
		return fmt.Errorf("make the stand-in of the base image: %w", err)
	}
	fmt.Printf("made the stand-in of the base image in %s\n", time.Since(start).Round(time.Second))
	repo, err := b.repository(ctx)
	if err != nil {
		return fmt.Errorf("make a repository: %w", err)
	}
	for _, arch := range []string{b.arch, otherArch} {
		if arch == "" {
			continue
		}
		start = time.Now()
		image, err := b.build(ctx, arch, repo.dir)
		if err != nil {
			return fmt.Errorf("build the image for %s: %w", arch, err)
		}
		fmt.Printf("built the image for %s in %s\n", arch, time.Since(start).Round(time.Second))
		if err := image.inspect(ctx, arch == b.arch, repo.build()); err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
	}
	if otherArch != "" {
		digest, err := b.layout(ctx, []string{b.arch, otherArch}, filepath.Join(b.dir, "layout"))
		if err != nil {
			return fmt.Errorf("one image for both architectures: %w", err)
		}
		fmt.Printf("one image for %s and %s: %s\n", b.arch, otherArch, digest)
	}
	start = time.Now()
	if err := b.identities(ctx, repo); err != nil {
		return err
	}
	fmt.Printf("checked version and revision of other contexts in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// install gets what the check needs from Debian.
func install(ctx context.Context) error {
	var missing []string
	for program, name := range map[string]string{"buildah": "buildah", "busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	fmt.Println("installing", strings.Join(missing, " "))
	args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)
	if _, err := output(ctx, nil, "apt-get", args...); err == nil {
		return nil
	}
	if _, err := output(ctx, nil, "apt-get", "update", "-q"); err != nil {
		return err
	}
	_, err := output(ctx, nil, "apt-get", args...)
	return err
}

// output runs a program to its end and returns what it printed on standard
// output. An error holds what it printed on both.
func output(ctx context.Context, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, all strings.Builder
	cmd.Stdout = &both{&out, &all}
	cmd.Stderr = &all
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, all.String())
	}
	return out.String(), nil
}

// both writes everything twice.
type both struct{ one, two *strings.Builder }

func (b *both) Write(p []byte) (int, error) {
	b.one.Write(p)
	return b.two.Write(p)
}
