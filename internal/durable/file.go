// Package durable writes files that are there in full or not at all, whenever the
// process or the machine stops.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished ends the name of a file while it is written. A process that is killed
// meanwhile leaves it.
const Unfinished = ".new"

// WriteFile puts a file of mode 0600 in the place of path, or of nothing: it writes
// path + Unfinished, and renames that as rename(2) has it. When it returns, content and
// name are on disk. It must not be called for one path at the same time; what an
// interrupted call left is replaced. Errors name the file.
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
	// The name is in the directory.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
