package tunnel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/durable"
)

// maxKeyFile bounds what is read of a key file: a key and a line break are 45
// bytes.
const maxKeyFile = 256

// keySuffix ends the names of key files.
const keySuffix = ".key"

// errBadKey marks a key file whose contents aren't a key.
var errBadKey = errors.New("not a private key")

// loadKey returns the private key in <dir>/<device>.key, and creates directory,
// file and key when there are none.
//
// Our own files are written in one step, so a file without a key in it comes
// from a broken disk or from an older tool that was cut off while writing. A
// node heals itself then: the file is kept aside as <file>.bad-<unix time>, and
// the new key reaches the other side the way every key does, as an annotation.
// A file that can't be read is an error: there may be a good key in it.
func loadKey(dir, device string, log *slog.Logger) (PrivateKey, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return PrivateKey{}, fmt.Errorf("create key directory: %w", err)
	}
	path := filepath.Join(dir, device+keySuffix)
	key, err := readKey(path, log)
	switch {
	case err == nil:
		return key, nil
	case errors.Is(err, errBadKey):
		aside := fmt.Sprintf("%s.bad-%d", path, time.Now().Unix())
		if renameErr := os.Rename(path, aside); renameErr != nil {
			return PrivateKey{}, errors.Join(err, fmt.Errorf("keep bad key file aside: %w", renameErr))
		}
		log.Error("private key file is damaged: this node gets a new key", "device", device, "err", err, "kept", aside)
	case !errors.Is(err, fs.ErrNotExist):
		return PrivateKey{}, err
	}
	key = newPrivateKey()
	if err := durable.WriteFile(path, key.text()); err != nil {
		return PrivateKey{}, fmt.Errorf("create key file: %w", err)
	}
	log.Info("created private key", "device", device, "file", path)
	return key, nil
}

func readKey(path string, log *slog.Logger) (PrivateKey, error) {
	// Without NONBLOCK, opening a FIFO would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return PrivateKey{}, fmt.Errorf("key file %s is a symbolic link", path)
	}
	if err != nil {
		return PrivateKey{}, fmt.Errorf("open key file: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return PrivateKey{}, fmt.Errorf("stat key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return PrivateKey{}, fmt.Errorf("key file %s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		if err := file.Chmod(0o600); err != nil {
			return PrivateKey{}, fmt.Errorf("restrict key file to its owner: %w", err)
		}
		log.Warn("private key file had other permissions than 0600: others may know the key", "file", path, "mode", mode.String())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile))
	if err != nil {
		return PrivateKey{}, fmt.Errorf("read key file: %w", err)
	}
	key, err := parsePrivateKey(text)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("key file %s: %w: %w", path, errBadKey, err)
	}
	return key, nil
}
