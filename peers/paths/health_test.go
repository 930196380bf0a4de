package paths

import (
	"testing"
	"time"
)

func TestHealthAt(t *testing.T) {
	never := time.Duration(-1)
	tests := map[string]struct {
		configured, handshake, heard time.Duration // ago
		nowhere                      bool
		want                         Health
	}{
		"just configured":                         {0, never, never, false, HealthConnecting},
		"the first handshake is still tried":      {89 * time.Second, never, never, false, HealthConnecting},
		"the first handshake is given up":         {91 * time.Second, never, never, false, HealthDown},
		"a handshake just now":                    {time.Hour, 0, never, false, HealthUp},
		"a session that is due":                   {time.Hour, 150 * time.Second, time.Second, false, HealthUp},
		"a session that ended":                    {time.Hour, 181 * time.Second, time.Second, false, HealthDown},
		"a session from before the agent's start": {time.Second, time.Minute, 44 * time.Second, false, HealthUp},
		"a peer that isn't heard any more":        {time.Hour, 50 * time.Second, 46 * time.Second, false, HealthSilent},
		"a session of which nothing is known":     {time.Second, time.Minute, never, false, HealthSilent},
		"a peer that has to speak first":          {time.Hour, never, never, true, HealthWaiting},
		"one that sent, on a recreated device":    {time.Hour, time.Minute, never, true, HealthSilent},
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ago := func(d time.Duration) time.Time {
				if d == never {
					return time.Time{}
				}
				return now.Add(-d)
			}
			if got := HealthAt(now, ago(tt.configured), ago(tt.handshake), ago(tt.heard), !tt.nowhere); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
