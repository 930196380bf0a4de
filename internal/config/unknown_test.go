package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariablesAreWarnedAbout(t *testing.T) {
	setenv(t, env(
		"SEMAPHORE_LOGLEVEL", "debug",
		"SEMAPHORE_REMOTE_GCP_WG_LISTN_PORT", "51830",
		"SEMAPHORE_REMOTE_GPC_POD_SUBNETS", "10.9.0.0/16",
		"SEMAPHORE_XYZ", "",
	))
	_, got, err := LoadWireguard(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"SEMAPHORE_LOGLEVEL: unknown, and has no effect; did you mean SEMAPHORE_LOG_LEVEL?",
		"SEMAPHORE_REMOTE_GCP_WG_LISTN_PORT: unknown, and has no effect; did you mean SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT?",
		"SEMAPHORE_REMOTE_GPC_POD_SUBNETS: unknown, and has no effect; did you mean SEMAPHORE_REMOTE_GCP_POD_SUBNETS?",
		"SEMAPHORE_XYZ: unknown, and has no effect",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestVariablesOfTheOtherProgramsAreKnown(t *testing.T) {
	setenv(t, env("SEMAPHORE_MIRROR_NAMESPACE", "m", "SEMAPHORE_POLICY_CALICO_API", "v3", "SEMAPHORE_REMOTE_GCP_SERVICE_PREFIX", "g"))
	if _, warnings, err := LoadWireguard(nil); err != nil || len(warnings) > 0 {
		t.Errorf("warnings %q, error %v", warnings, err)
	}
}

func TestVariablesOfKubernetesAreNotOurs(t *testing.T) {
	setenv(t, env(
		"SEMAPHORE_POLICY_SERVICE_HOST", "10.0.0.7",
		"SEMAPHORE_POLICY_SERVICE_PORT", "8080",
		"SEMAPHORE_POLICY_SERVICE_PORT_METRICS", "8080",
		"SEMAPHORE_POLICY_PORT", "tcp://10.0.0.7:8080",
		"SEMAPHORE_POLICY_PORT_8080_TCP", "tcp://10.0.0.7:8080",
		"SEMAPHORE_POLICY_PORT_8080_TCP_PROTO", "tcp",
		"SEMAPHORE_POLICY_PORT_8080_TCP_PORT", "8080",
		"SEMAPHORE_POLICY_PORT_8080_TCP_ADDR", "10.0.0.7",
	))
	if _, warnings, err := LoadWireguard(nil); err != nil || len(warnings) > 0 {
		t.Errorf("warnings %q, error %v", warnings, err)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "abc", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"GPC", "GCP", 2},
	} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
