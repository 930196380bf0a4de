package statuspage

import (
	"testing"
	"time"
)

func TestOverdue(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		issued, expires time.Duration
		want            bool
	}{
		{-time.Hour, 23 * time.Hour, false}, {-17 * time.Hour, 7 * time.Hour, true}, {-15 * time.Hour, 9 * time.Hour, false},
		{-300 * 24 * time.Hour, 60 * 24 * time.Hour, false}, {-354 * 24 * time.Hour, 6 * 24 * time.Hour, true}, {-time.Hour, -time.Minute, true},
	} {
		issued, expires := now.Add(tt.issued), now.Add(tt.expires)
		if got := (&CredentialCheck{Issued: &issued, Expires: &expires}).Overdue(now); got != tt.want {
			t.Errorf("issued %s ago, expires in %s: %t", -tt.issued, tt.expires, got)
		}
	}
	if new(CredentialCheck).Overdue(now) {
		t.Error("a token without dates")
	}
}
