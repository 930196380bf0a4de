package keep

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Failing returns the keys whose last Apply failed, and how.
func (w *Writer[K]) Failing() map[K]error {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[K]error{}
	for key, j := range w.jobs {
		if j.err != nil {
			all[key] = j.err
		}
	}
	return all
}

// Backlog returns how many keys of each tenant aren't known to be in order: those
// that wait, are being written, or failed.
func (w *Writer[K]) Backlog() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := map[string]int{}
	for _, j := range w.jobs {
		if j.running || !j.asked.IsZero() {
			count[j.tenant.name]++
		}
	}
	return count
}

// Running returns how long each Apply that is running has been.
func (w *Writer[K]) Running(now time.Time) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ages []time.Duration
	for _, j := range w.jobs {
		if j.running {
			ages = append(ages, now.Sub(j.started))
		}
	}
	return ages
}

// Stuck returns an error while Apply takes longer than it may. Work of a term that
// has ended doesn't count: it ends by itself, and whoever leads by now does it.
func (w *Writer[K]) Stuck(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	var keys []string
	for key, j := range w.jobs {
		if j.running && now.Sub(j.started) > w.cfg.StuckAfter {
			keys = append(keys, fmt.Sprint(key))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	return fmt.Errorf("%s: writing for more than %v: %s", w.cfg.Name, w.cfg.StuckAfter, strings.Join(keys, ", "))
}
