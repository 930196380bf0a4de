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
