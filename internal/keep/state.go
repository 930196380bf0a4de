package keep

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Failing returns the keys whose last Apply failed, and the errors.
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

// Backlog returns the number of keys of each tenant that are due, running or failed, or wait for
// their turn. Keys that were added for later don't count yet.
func (w *Writer[K]) Backlog() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count, now := map[string]int{}, time.Now()
	for key, j := range w.jobs {
		failing := j.tenant.retries.NumRequeues(key) > 0
		if !j.started.IsZero() || j.waits || !j.asked.IsZero() && (failing || !j.asked.After(now)) {
			count[j.tenant.name]++
		}
	}
	return count
}

// Running returns the durations of all running calls of Apply.
func (w *Writer[K]) Running(now time.Time) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ages []time.Duration
	for _, j := range w.jobs {
		if !j.started.IsZero() {
			ages = append(ages, now.Sub(j.started))
		}
	}
	return ages
}

// Stuck returns an error while a call of Apply takes longer than StuckAfter. After Run has
// ended, running calls don't count: another leader does the work by then.
func (w *Writer[K]) Stuck(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	var keys []string
	for key, j := range w.jobs {
		if !j.started.IsZero() && now.Sub(j.started) > w.cfg.StuckAfter {
			keys = append(keys, fmt.Sprint(key))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	return fmt.Errorf("%s: writing for more than %v: %s", w.cfg.Name, w.cfg.StuckAfter, strings.Join(keys, ", "))
}
