package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLibrariesOfAProgram(t *testing.T) {
	got := parseLdd(`	linux-vdso.so.1 (0x00007f6f8818a000)
	libipset.so.13 => /lib/x86_64-linux-gnu/libipset.so.13 (0x00007f6f8813d000)
	libgone.so.1 => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f6f8818c000)
`)
	if diff := cmp.Diff([]string{"/lib/x86_64-linux-gnu/libipset.so.13", "/lib64/ld-linux-x86-64.so.2"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
