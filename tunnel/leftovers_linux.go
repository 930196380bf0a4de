package tunnel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/internal/durable"
)

// RemoveUnfinished removes files that processes of ours left when they were killed:
// keys that never got to their places. No device may be in the making
// meanwhile, so it is called before the first [Open]. It returns what it removed.
func RemoveUnfinished(keyPath string) (removed []string, err error) {
	var errs []error
	for _, pattern := range []string{
		filepath.Join(keyPath, namePrefix+"*"+keySuffix+durable.Unfinished),
		filepath.Join(keyPath, shortPrefix+"*"+keySuffix+durable.Unfinished),
	} {
		found, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, path := range found {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove what an earlier run left: %w", err))
				continue
			}
			removed = append(removed, path)
		}
	}
	return removed, errors.Join(errs...)
}

// RemoveProbe removes the link that [Supported] creates for a moment, if a process
// of ours was killed in that moment. A link of that name that is up, or that has a
// key, a peer or an alias, is somebody else's and stays.
func RemoveProbe() (removed bool, err error) {
	l, err := findLink(probeName)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || l.backend != Kernel || l.up || l.alias != "" {
		return false, err
	}
	found, err := newPatient(protocol{}, answerLimit).Device(probeName)
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
