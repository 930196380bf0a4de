package status

import (
	"context"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// hostile is a name that would run scripts if it weren't escaped for its context.
const hostile = `x"><script>document.title='owned'</script><img src=x onerror="document.title='owned'">`

// TestPageInABrowser opens pages of 5 and of 500 nodes in Debian's Chromium, which
// tools/deps installs.
func TestPageInABrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("NOT TESTED: the page in a browser: there is no chromium-headless-shell here; tools/deps installs it")
	}
	for _, nodes := range []int{5, 500} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			if testing.Short() && nodes > 5 {
				t.Skip("left out by -short: a page of 500 nodes takes the browser seconds")
			}
			clusters := inspecttest.Pair(nodes)
			for i := range nodes { // Paths of the first node that are down.
				clusters[0].Agents[0].Value.Remotes[0].Peers[i].Path.State = "down"
			}
			clusters[0].Agents[1].Value.Remotes[0].Peers[2].Path.Sign = hostile
			clusters[0].Agents[1].Value.Remotes[0].Peers[2].Path.State = "down"
			clusters[0].Agents[2].Value.Version = hostile
			clusters[1].Context = "javascript:" + hostile
			begin := time.Now()
			file := filepath.Join(t.TempDir(), "page.html")
			to, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := view(t, clusters).HTML(to); err != nil {
				t.Fatal(err)
			}
			size, _ := to.Seek(0, 1)
			if err := to.Close(); err != nil {
				t.Fatal(err)
			}
			made := time.Since(begin)

			begin = time.Now()
			dom := chromium(t, browser, "--dump-dom", "file://"+file)
			t.Logf("%d nodes: %d bytes, made in %v, read and laid out in %v", nodes, size, made, time.Since(begin))
			if !strings.Contains(dom, "<title>Clusters: aws gcp</title>") {
				t.Error("the title isn't the page's: a script has run")
			}
			// The parsed document has no foreign elements.
			for _, element := range []string{"<script", "<img src=\"x"} {
				if strings.Contains(dom, element) {
					t.Errorf("the browser has found %s", element)
				}
			}
			if !strings.Contains(dom, "&lt;script&gt;document.title") {
				t.Error("the hostile text isn't shown as text")
			}
			latencies := 2 * nodes * nodes // of each path
			if nodes > largest {
				latencies = 2 * 2 * nodes // of each node, median and slowest
			}
			if got := strings.Count(dom, "12.3 ms</td>") + strings.Count(dom, "12.3 ms</a></td>"); got != latencies {
				t.Errorf("%d latencies are shown, want %d", got, latencies)
			}
			if nodes <= largest {
				for class, want := range map[string]int{"up20": 2*nodes*nodes - nodes - 1, "down": nodes + 1, "unknown": 0} {
					if got := strings.Count(dom, `<td class="`+class+`"`); got != want {
						t.Errorf("%d cells are %s, want %d", got, class, want)
					}
				}
			}

			shot := filepath.Join(t.TempDir(), "page.png")
			chromium(t, browser, "--window-size=1400,2600", "--screenshot="+shot, "file://"+file)
			green, red := count(t, shot)
			t.Logf("%d green and %d red pixels", green, red)
			// The larger page's first matrix fills the window.
			share, want := float64(red)/float64(red+green), float64(nodes+1)/float64(2*nodes*nodes)
			if share < want/2 || share > 3*want {
				t.Errorf("%.4f of the coloured pixels are red, want about %.4f", share, want)
			}
		})
	}
}

// chromium runs the browser without name resolution, so that it can load nothing but the
// page.
func chromium(t *testing.T, browser string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	profile := t.TempDir()
	// Its sandbox doesn't work as root in a container.
	args = append([]string{
		"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + profile,
		"--host-resolver-rules=MAP * ~NOTFOUND",
	}, args...)
	cmd := exec.CommandContext(ctx, browser, args...)
	cmd.Env = append(os.Environ(), "HOME="+profile)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return string(out)
}

// TestPageOnAPhone measures the width of the page in a narrow window: only a matrix scrolls
// sideways. A script, which the page itself forbids, reads it.
func TestPageOnAPhone(t *testing.T) {
	browser, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("NOT TESTED: the page in a browser: there is no chromium-headless-shell here; tools/deps installs it")
	}
	clusters := inspecttest.Pair(12)
	long := strings.Repeat("a-long-name.", 12) + "example"
	clusters[0].Context, clusters[0].Nodes.Value[0].Name = long, long
	clusters[1].Agents[0].Value.Remotes[0].Peers[2].Path.State = "down"
	clusters[1].Agents[0].Value.Remotes[0].Peers[3].Path.SmallOnly = true
	var page strings.Builder
	if err := view(t, clusters).HTML(&page); err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(page.String(), "<title>") // After the content security policy.
	file := filepath.Join(t.TempDir(), "page.html")
	script := "<script>document.title = 'width ' + document.documentElement.scrollWidth + ' of ' + document.documentElement.clientWidth</script>"
	if err := os.WriteFile(file, []byte(`<!DOCTYPE html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>`+body+script), 0o600); err != nil {
		t.Fatal(err)
	}
	if dom := chromium(t, browser, "--window-size=390,844", "--dump-dom", "file://"+file); !strings.Contains(dom, "<title>width 390 of 390</title>") {
		_, title, _ := strings.Cut(dom, "<title>")
		t.Errorf("the page's title is %.40q, want 390 of 390", title)
	}
	if to := os.Getenv("SEMAPHORE_PAGE_PICTURE"); to != "" {
		chromium(t, browser, "--window-size=390,1700", "--screenshot="+to, "file://"+file)
	}
}

// count returns the number of pixels in the colours of up, below 20 ms, and down.
func count(t *testing.T, path string) (green, red int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	picture, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			switch r, g, b, _ := picture.At(x, y).RGBA(); [3]uint32{r >> 8, g >> 8, b >> 8} {
			case [3]uint32{0x3d, 0xa7, 0x8c}:
				green++
			case [3]uint32{0xd0, 0x2b, 0x2b}:
				red++
			}
		}
	}
	return green, red
}
