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

	"github.com/kube-semaphore/kube-semaphore/internal/atomicfile"
)

// maxKeyFile bounds the bytes read from a key file: a key and a line break are 45.
const maxKeyFile = 256

// keySuffix ends the names of key files.
const keySuffix = ".key"

// errBadKey means that a key file has invalid content.
var errBadKey = errors.New("not a private key")

// loadKey returns the private key in <dir>/<device>.key, creating directory, file and key if
// missing.
//
// Our own files are written atomically, so an invalid file comes from a broken disk or from
// an older tool that was interrupted while writing. It is renamed to <file>.bad-<unix time>
// and replaced by a new key, which is published like every key. A file that can't be read is
// an error, since it may have a valid key.
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
			return PrivateKey{}, errors.Join(err, fmt.Errorf("rename invalid key file: %w", renameErr))
		}
		log.Error("private key file is damaged: creating a new key", "device", device, "err", err, "kept", aside)
	case !errors.Is(err, fs.ErrNotExist):
		return PrivateKey{}, err
	}
	key = newPrivateKey()
	if err := atomicfile.WriteFile(path, key.text()); err != nil {
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
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if err := file.Chmod(0o600); err != nil {
			return PrivateKey{}, fmt.Errorf("restrict key file to its owner: %w", err)
		}
		log.Warn("private key file was open to other users, who may have read the key", "file", path, "mode", mode.String())
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
