package measure

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 1 1 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 1 1 1"
	for name, c := range map[string]struct {
		content string
		want    time.Duration
		fails   bool
	}{
		"user and system":          {"42 (agent)" + rest, 1750 * time.Millisecond, false},
		"a name with parentheses":  {"42 (a) b (c)" + rest, 1750 * time.Millisecond, false},
		"cut short":                {"42 (agent) S 1 1", 0, true},
		"not a number":             {"42 (agent) S 1 1 1 0 -1 4194560 1 0 0 0 x 25 0", 0, true},
		"empty":                    {"", 0, true},
		"nothing but a name, open": {"42 (agent", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(c.content)
			if (err != nil) != c.fails || err == nil && got != c.want {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	content, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	now, err := parseStatus(string(content), "VmRSS")
	if err != nil || now < 1<<20 {
		t.Errorf("own resident set: %v, %v", now, err)
	}
	if got, err := parseStatus("VmRSS:\t    1024 kB\n", "VmRSS"); err != nil || got != 1<<20 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseStatus("Name:\tx\n", "VmRSS"); err == nil {
		t.Error("found a size that isn't there")
	}
}

func TestWhatIsSharedCountsOnce(t *testing.T) {
	now, _, err := Resident(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	share, err := Proportional(os.Getpid())
	if err != nil || share <= 0 || share > 2*now {
		t.Errorf("the proportional set is %v bytes of %v: %v", share, now, err)
	}
	if _, err := Proportional(-1); err == nil {
		t.Error("a process that isn't there has one")
	}
}
