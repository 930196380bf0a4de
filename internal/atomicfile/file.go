// Package atomicfile writes files atomically and durably: after a crash of the process or
// the machine a file has either its old or its new content.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished is the suffix of a file that is being written. A process that is killed
// meanwhile leaves that file behind.
const Unfinished = ".new"

// WriteFile creates or replaces the file at path, with mode 0600: it writes
// path + Unfinished and renames it (rename(2)). When it returns, content and directory
// entry are on disk. Calls for one path must not overlap; it replaces what an
// interrupted call left. Errors name the file.
func WriteFile(path string, contents []byte) (err error) {
	partial := path + Unfinished
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// O_EXCL doesn't follow a symbolic link.
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(contents)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	// The rename is durable once the directory is synced.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
