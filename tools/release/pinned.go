package main

import (
	"context"
	"fmt"
	"regexp"
)

// pinnedReference is the name of an image with the digest of its content
// (github.com/opencontainers/image-spec, descriptor.md). Tags can be moved.
var pinnedReference = regexp.MustCompile(`^[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[0-9a-f]{64}$`)

// pinnedCommand prints the name of an image for the build of a release, and rejects one
// without a digest.
func pinnedCommand(_ context.Context, in invocation) error {
	image := in.flags.String("image", "", "`reference` of the image, with @sha256: and its digest")
	if err := in.parse(0); err != nil {
		return err
	}
	if !pinnedReference.MatchString(*image) {
		return notPinned(*image)
	}
	_, err := fmt.Fprintln(in.stdout, *image)
	return err
}

func notPinned(image string) error {
	return fmt.Errorf("image %q isn't named by a digest: expected name@sha256: and 64 hexadecimal digits", image)
}
