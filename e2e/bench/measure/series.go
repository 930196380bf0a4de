package measure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Quantile interpolates between the two nearest of sorted values, of which there is
// at least one. q is between 0 and 1.
func Quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	part := at - float64(low)
	return sorted[low]*(1-part) + sorted[low+1]*part
}

// Latencies is a series of times, in any order.
type Latencies []time.Duration

// Quantile returns a quantile to a tenth of a millisecond; 0 of none.
func (l Latencies) Quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := make([]float64, 0, len(l))
	for _, d := range l {
		sorted = append(sorted, float64(d))
	}
	slices.Sort(sorted)
	return time.Duration(Quantile(sorted, q)).Round(100 * time.Microsecond)
}

// String is the median and what one of a hundred exceeds.
func (l Latencies) String() string {
	return fmt.Sprintf("p50 %v, p99 %v", l.Quantile(0.5), l.Quantile(0.99))
}

// Results returns the same as two results, in seconds.
func (l Latencies) Results(name string) []Result {
	return []Result{
		Alone(name+", p50", "s", l.Quantile(0.5).Seconds()),
		Alone(name+", p99", "s", l.Quantile(0.99).Seconds()),
	}
}

// Counter returns the sum over all labels of a counter in the text of /metrics, 0
// when it isn't there.
func Counter(metrics, name string) (int, error) {
	sum := 0.0
	for line := range strings.Lines(metrics) {
		rest, found := strings.CutPrefix(line, name)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err != nil {
			return 0, fmt.Errorf("read %q: %w", line, err)
		}
		sum += value
	}
	return int(sum), nil
}

// Pause waits, unless ctx ends first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
