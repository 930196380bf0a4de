package tokens

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestCollector(t *testing.T) {
	files := map[string]string{"away": filepath.Join(t.TempDir(), "token")}
	for name, token := range map[string]string{
		"gcp": issue(t, agents(time.Unix(1_800_000_000, 0))) + "\n", "static": sign(`{"sub":"x"}`), "words": "no token",
	} {
		files[name] = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(files[name], []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const want = `# HELP semaphore_wg_remote_token_expiry_timestamp_seconds When the token for the remote's API server expires.
# TYPE semaphore_wg_remote_token_expiry_timestamp_seconds gauge
semaphore_wg_remote_token_expiry_timestamp_seconds{cluster="gcp"} 1.802592e+09
# HELP semaphore_wg_remote_token_issued_timestamp_seconds When the token for the remote's API server was issued.
# TYPE semaphore_wg_remote_token_issued_timestamp_seconds gauge
semaphore_wg_remote_token_issued_timestamp_seconds{cluster="gcp"} 1.8e+09
`
	if err := testutil.CollectAndCompare(NewCollector("semaphore_wg", files), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
