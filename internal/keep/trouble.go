package keep

import (
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// quiet is how long a sort of trouble that ended and comes back isn't logged above
// level debug.
const quiet = time.Minute

// trouble logs what sorts of trouble there are with the keys of one tenant: an error
// when a sort appears, and when the last key has overcome it. Thousands of keys that
// fail for one reason make one line.
type trouble struct {
	log   *slog.Logger
	sorts map[string]*sort
}

type sort struct {
	keys   int
	logged time.Time // when it was last logged as an error
	told   bool      // it was, this time
}

// changed notes that a key has trouble of another sort than before; empty: none.
func (t *trouble) changed(ctx context.Context, before, after string, key any, err error) {
	now := time.Now()
	if before != after && before != "" {
		s := t.sorts[before]
		if s.keys--; s.keys == 0 && s.told {
			t.log.InfoContext(ctx, "no more writes fail for this reason", "reason", before)
		}
	}
	if after == "" {
		return
	}
	s := t.sorts[after]
	if s == nil {
		s = &sort{}
		if t.sorts == nil {
			t.sorts = map[string]*sort{}
		}
		t.sorts[after] = s
	}
	level := slog.LevelDebug
	if before != after {
		if s.keys++; s.keys == 1 {
			if s.told = now.Sub(s.logged) >= quiet; s.told {
				s.logged, level = now, slog.LevelError
			}
		}
	}
	t.log.Log(ctx, level, "not written", "reason", after, "key", key, "err", err)
}

// reason is the sort of an error of a request.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != "" {
		return string(r)
	}
	return "request"
}
