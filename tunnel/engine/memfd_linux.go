package engine

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// writeMemfd returns a memfd with the content, which passes keys to another process without
// writing them to disk.
func writeMemfd(content []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "configuration")
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(content, 0); err != nil {
		return -1, fmt.Errorf("write a file in memory: %w", err)
	}
	return duplicate(fd)
}

// maxConfiguration bounds the content that readMemfd returns, in bytes.
const maxConfiguration = 64 << 20

// readMemfd reads a memfd and closes it.
func readMemfd(fd int) ([]byte, error) {
	file := os.NewFile(uintptr(fd), "configuration")
	defer func() { _ = file.Close() }()
	var content bytes.Buffer
	_, err := content.ReadFrom(io.NewSectionReader(file, 0, maxConfiguration))
	return content.Bytes(), err
}
