package tunnel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFamiliesOfGenericNetlinkAreFound(t *testing.T) {
	if err := findFamily("nlctrl"); err != nil {
		t.Errorf("the family that every kernel has: %v", err)
	}
	if err := findFamily("unknown"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("one that no kernel has: %v", err)
	}
}
