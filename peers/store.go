package peers

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kube-semaphore/kube-semaphore/internal/atomicfile"
)

// storeVersion is the version of the file format. Files of other versions are ignored, as
// the remote's API server is authoritative.
const storeVersion = 1

// storeSuffix follows the device's name in the file name.
const storeSuffix = ".peers.json"

// maxStored bounds the bytes read from the file: several times the size for the default
// maximum of peers.
const maxStored = 64 << 20

// Store keeps on disk the nodes whose peers were last applied, so that a node that boots
// while the remote's API server is unreachable joins the mesh. It holds what the remote's
// nodes publish, which isn't secret, and what was accepted from them, which earlier
// versions ignore. Stored nodes pass the same checks as those of the API server, so that
// a subnet that is no longer configured doesn't return from disk.
type Store struct {
	path    string
	cluster string

	mu   sync.Mutex
	last [sha256.Size]byte // of the file's content; zero: not known
}

type stored struct {
	Version int          `json:"version"`
	Cluster string       `json:"cluster"`
	Nodes   []Remembered `json:"nodes"`
}

// NewStore returns the store of the peers of one device, the file
// "<dir>/<device>.peers.json".
func NewStore(dir, device, cluster string) *Store {
	return &Store{path: filepath.Join(dir, device+storeSuffix), cluster: cluster}
}

// Load returns the stored nodes, none if the file doesn't exist. An invalid file is an
// error that names it; the next Save overwrites it.
func (s *Store) Load() ([]Remembered, error) {
	data, err := readBounded(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last applied peers: %w", err)
	}
	nodes, err := parseStored(data, s.cluster)
	if err != nil {
		return nil, fmt.Errorf("last applied peers in %s: %w", s.path, err)
	}
	s.mu.Lock()
	s.last = sha256.Sum256(data)
	s.mu.Unlock()
	return nodes, nil
}

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	// Read only: nothing can be lost.
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxStored+1))
	if err == nil && len(data) > maxStored {
		err = fmt.Errorf("%s has more than %d bytes", path, maxStored)
	}
	return data, err
}

func parseStored(data []byte, cluster string) ([]Remembered, error) {
	var st stored
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, err
	}
	if st.Version != storeVersion {
		return nil, fmt.Errorf("version %d, expected %d", st.Version, storeVersion)
	}
	if st.Cluster != cluster {
		return nil, fmt.Errorf("written for cluster %q, expected %q", st.Cluster, cluster)
	}
	return st.Nodes, nil
}

// Save writes the nodes if they differ from the file. It replaces the file atomically.
func (s *Store) Save(nodes []Remembered) error {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Remembered) int { return strings.Compare(a.Name, b.Name) })
	data, err := json.Marshal(stored{Version: storeVersion, Cluster: s.cluster, Nodes: nodes})
	if err != nil {
		return fmt.Errorf("encode last applied peers: %w", err)
	}
	sum := sha256.Sum256(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sum == s.last {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return fmt.Errorf("store last applied peers: %w", err)
	}
	if err := atomicfile.WriteFile(s.path, data); err != nil {
		return fmt.Errorf("store last applied peers: %w", err)
	}
	s.last = sum
	return nil
}

// Remove deletes the file; a missing one is no error.
func (s *Store) Remove() error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove last applied peers: %w", err)
	}
	return nil
}

// RemoveUnfinished removes temporary files of stores that were left by processes killed
// while writing, and returns their paths. No store may be written meanwhile.
func RemoveUnfinished(dir string) (removed []string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "*"+storeSuffix+atomicfile.Unfinished))
	errs := []error{err}
	for _, path := range found {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove a temporary file of an earlier run: %w", err))
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}

// Forget removes the stores of devices for which keep is false, such as those of remotes
// that are no longer configured, and returns these devices: what was accepted from such a
// remote must not count when it is configured again later. A missing directory is no
// error.
func Forget(dir string, keep func(device string) bool) (forgotten []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list last applied peers: %w", err)
	}
	var errs []error
	for _, e := range entries {
		device, ours := strings.CutSuffix(e.Name(), storeSuffix)
		if !ours || keep(device) {
			continue
		}
		store := &Store{path: filepath.Join(dir, e.Name())}
		if err := store.Remove(); err != nil {
			errs = append(errs, err)
			continue
		}
		forgotten = append(forgotten, device)
	}
	return forgotten, errors.Join(errs...)
}
