package mirror

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// partial is an API server that serves the Multi-Cluster Services API, and lets its objects be
// read, only when it is asked to.
type partial struct {
	served, allowed atomic.Bool
	requests        atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (p *partial) RoundTrip(r *http.Request) (*http.Response, error) {
	p.requests.Add(1)
	code, body := http.StatusOK, any(metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		APIResources: []metav1.APIResource{{Name: v1beta1.ServiceExportPluralName}, {Name: v1beta1.ServiceImportPluralName}},
	})
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch resource := parts[len(parts)-1]; {
	case !p.served.Load():
		code, body = http.StatusNotFound, kubetest.Failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	case resource == v1beta1.GroupVersion.Version:
	case !p.allowed.Load():
		code, body = http.StatusForbidden, kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	case resource == "namespaces":
		body = metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}
	case resource == v1beta1.ServiceImportPluralName:
		body = metav1.TypeMeta{Kind: "ServiceImportList", APIVersion: v1beta1.GroupVersion.String()}
	default:
		body = metav1.TypeMeta{Kind: "ServiceExportList", APIVersion: v1beta1.GroupVersion.String()}
	}
	text, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
}

// The API is off until the cluster serves it, and the account has the rights of the component:
// one line of the log per reason, and one attempt each half minute.
func TestDetector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, out := &partial{}, &logtest.Buffer{}
		client, err := kube.NewClient(&rest.Config{Host: "http://api", Transport: server, QPS: -1})
		must(t, err)
		d := &detector{client: client, served: published.NewGate(), notify: func() {}, families: func([]corev1.IPFamily) {}, log: errlog.Log{
			Logger: slog.New(slog.NewTextHandler(out, nil)), Failing: "off", Quiet: detectEvery,
		}}
		kubetest.Run(t, []run.Task{d}, nil)
		expect := func(what string, on bool) {
			t.Helper()
			time.Sleep(10 * detectEvery)
			if err := d.Err(); d.served.IsOpen() != on || (err == nil) != on || err != nil && !strings.Contains(err.Error(), what) {
				t.Fatalf("on: %v, %v, want %q", d.served.IsOpen(), err, what)
			}
		}
		expect("are not installed in this cluster", false)
		server.served.Store(true)
		expect("the account lacks the rights of deploy/service-mirror/mcs", false)
		if n := server.requests.Load(); n > 35 {
			t.Errorf("%d requests", n)
		}
		server.allowed.Store(true)
		expect("", true)
		if lines := strings.Count(out.String(), "\n"); lines != 3 {
			t.Errorf("%d lines:\n%s", lines, out.String())
		}
		// Its end would be that of the program.
		before := server.requests.Load()
		time.Sleep(time.Hour)
		if n := server.requests.Load(); n != before {
			t.Errorf("%d requests after it was found", n-before)
		}
	})
}

// transport is a function as http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The first imports wait for all clusters also when the API is served long after the start.
func TestImportsThatAreServedLaterAreFirstSeenComplete(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		served := &partial{}
		i := c.start(func(cfg *Config) {
			config := c.gcp.Config()
			config.Transport = transport(func(r *http.Request) (*http.Response, error) {
				if !served.served.Load() && strings.HasSuffix(r.URL.Path, v1beta1.GroupVersion.String()) {
					return served.RoundTrip(r)
				}
				return c.gcp.RoundTrip(r)
			})
			var err error
			cfg.Client, err = kube.NewClient(config)
			must(t, err)
		})
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 5)
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		time.Sleep(10 * time.Minute)
		if st := i.Status().MultiCluster; !strings.Contains(st.Off, "not installed") {
			t.Errorf("%+v", st)
		}
		c.aws.Stop()
		served.served.Store(true)
		wait(t, "the detection", func() error { return i.multi.detect.Err() })
		time.Sleep(firstImports * 2 / 3)
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", ""); len(all) > 0 {
			t.Errorf("without aws: %v", all)
		}
		c.aws.Start()
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
	})
}
