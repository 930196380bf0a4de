package peers

import (
	"testing"
	"time"
)

func TestHealthAt(t *testing.T) {
	never := time.Duration(-1)
	tests := map[string]struct {
		configured, handshake time.Duration // ago
		want                  Health
	}{
		"just configured":                         {0, never, HealthConnecting},
		"the first handshake is still tried":      {89 * time.Second, never, HealthConnecting},
		"the first handshake is given up":         {91 * time.Second, never, HealthDown},
		"a handshake just now":                    {time.Hour, 0, HealthUp},
		"a session that is due":                   {time.Hour, 150 * time.Second, HealthUp},
		"a session that ended":                    {time.Hour, 181 * time.Second, HealthDown},
		"a session from before the agent's start": {time.Second, time.Minute, HealthUp},
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var handshake time.Time
			if tt.handshake != never {
				handshake = now.Add(-tt.handshake)
			}
			if got := HealthAt(now, now.Add(-tt.configured), handshake); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
