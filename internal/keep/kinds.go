package keep

import (
	"context"
	"log/slog"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// quiet is the minimum interval between two logged errors of one kind.
const quiet = time.Minute

// kinds logs errors by kind: thousands of keys with one kind of error make one line when the
// first of them has it, and one when the last has recovered.
type kinds struct {
	log   errlog.Log
	count map[string]int // of keys
}

func newKinds(logger *slog.Logger, level slog.Level, failing, over string) kinds {
	return kinds{
		log: errlog.Log{
			Logger: logger, Level: level, Quiet: quiet, Failing: failing, Over: over,
			Kind: func(error) string { return "" }, // the key of the log is the kind
		},
		count: map[string]int{},
	}
}

// move records the kind of a key's error, after another one before; empty: none. The
// attributes are those of the error.
func (k *kinds) move(ctx context.Context, before, now string, err error, attrs ...any) {
	if before != "" && before != now {
		if k.count[before]--; k.count[before] == 0 {
			delete(k.count, before)
			k.log.NoteOf(ctx, before, nil, "reason", before)
		}
	}
	if now != "" {
		if before != now {
			k.count[now]++
		}
		k.log.NoteOf(ctx, now, err, attrs...)
	}
}
