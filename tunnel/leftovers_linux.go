package tunnel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/internal/atomicfile"
)

// RemoveUnfinished removes temporary key files that were left by processes killed while
// writing, and returns their paths. No key may be written meanwhile: call it before the
// first [Open].
func RemoveUnfinished(keyPath string) (removed []string, err error) {
	var errs []error
	for _, pattern := range []string{
		filepath.Join(keyPath, namePrefix+"*"+keySuffix+atomicfile.Unfinished),
		filepath.Join(keyPath, shortPrefix+"*"+keySuffix+atomicfile.Unfinished),
	} {
		found, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range found {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove a temporary file of an earlier run: %w", err))
				continue
			}
			removed = append(removed, path)
		}
	}
	return removed, errors.Join(errs...)
}

// RemoveProbe removes the temporary link of [Supported], which a killed process may have
// left. A link of that name that is up, or that has a key, a peer or an alias, is foreign
// and stays.
func RemoveProbe() (removed bool, err error) {
	l, err := findLink(probeName)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || l.backend != Kernel || l.up || l.alias != "" {
		return false, err
	}
	found, err := newTimeoutController(protocol{}, requestTimeout).Device(probeName)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read link %s: %w", probeName, explain(err))
	case !publicKeyOf(found).IsZero() || len(found.Peers) > 0:
		return false, nil
	}
	return true, l.remove()
}
