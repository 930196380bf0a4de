package policy

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

func TestPoolFaults(t *testing.T) {
	p := netip.MustParsePrefix
	own := Pool{Name: "default", CIDR: p("10.2.0.0/16"), NATOutgoing: true}
	own6 := Pool{Name: "default-6", CIDR: p("fd00:10:2::/48")}
	good := Pool{Name: "remote-gcp", CIDR: p("10.4.0.0/16"), Disabled: true, DisableBGPExport: true}
	with := func(change func(*Pool)) Pool {
		pool := good
		change(&pool)
		return pool
	}
	const announced = "the IP pool remote-gcp (10.4.0.0/16) lacks disableBGPExport: true: Calico's BGP, if it is on, leads packets for 10.4.0.0/16 out in plaintext"
	for name, tt := range map[string]struct {
		subnets string
		pools   []Pool
		want    []string
	}{
		"as documented":        {"10.4.0.0/16", []Pool{own, own6, good}, nil},
		"nothing masqueraded":  {"fd00:10:4::/48", []Pool{own, own6, good}, nil},
		"no pool":              {"10.4.0.0/16", []Pool{own, own6}, []string{"no IP pool has 10.4.0.0/16: pods of the pool default are masqueraded on their way there"}},
		"a pool of a part":     {"10.4.0.0/15", []Pool{own, good}, []string{"no IP pool has 10.4.0.0/15: pods of the pool default are masqueraded on their way there"}},
		"a wider pool":         {"10.4.0.0/20", []Pool{own, good}, nil},
		"announced":            {"10.4.0.0/16", []Pool{own, with(func(p *Pool) { p.DisableBGPExport = false })}, []string{announced}},
		"in use here":          {"10.4.0.0/16", []Pool{own, with(func(p *Pool) { p.Disabled = false })}, []string{"the IP pool remote-gcp (10.4.0.0/16) isn't disabled: pods here get addresses of 10.4.0.0/16"}},
		"no pools of Calico's": {"10.4.0.0/16", nil, nil},
		"a part of it announced": {"10.4.0.0/16", []Pool{own, good, {Name: "x", CIDR: p("10.4.1.0/24"), Disabled: true}},
			[]string{strings.Replace(announced, "remote-gcp (10.4.0.0/16)", "x (10.4.1.0/24)", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, PoolFaults([]netip.Prefix{p(tt.subnets)}, tt.pools)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolsAreReadFromTheAPIInUse(t *testing.T) {
	t.Parallel()
	const list = `{"kind":"IPPoolList","items":[
		{"metadata":{"name":"remote-gcp"},"spec":{"cidr":"10.4.7.0/16","disabled":true,"natOutgoing":false,"disableBGPExport":true,"ipipMode":"Never"}},
		{"metadata":{"name":"default"},"spec":{"cidr":"10.2.0.0/16","natOutgoing":true}},
		{"metadata":{"name":"broken"},"spec":{"cidr":"x"}}]}`
	want := []Pool{
		{Name: "remote-gcp", CIDR: netip.MustParsePrefix("10.4.0.0/16"), Disabled: true, DisableBGPExport: true},
		{Name: "default", CIDR: netip.MustParsePrefix("10.2.0.0/16"), NATOutgoing: true},
	}
	for _, tt := range []struct {
		api    string
		status int
		body   string
		want   []Pool
		err    error
	}{
		{"/apis/projectcalico.org/v3", http.StatusOK, list, want, nil},
		{"/apis/crd.projectcalico.org/v1", http.StatusOK, list, want, nil},
		{"/apis/projectcalico.org/v3", http.StatusForbidden, "", nil, ErrPoolsUnknown},
		{"/apis/crd.projectcalico.org/v1", http.StatusNotFound, "", nil, ErrPoolsUnknown},
		{"/apis/projectcalico.org/v3", http.StatusOK, "{", nil, errors.ErrUnsupported},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch r.URL.Path {
			case tt.api:
				_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"globalnetworksets"}]}`))
			case tt.api + "/ippools":
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			default:
				http.NotFound(w, r)
			}
		}))
		t.Cleanup(server.Close)
		access, err := NewCalico(&rest.Config{Host: server.URL}, "auto")
		if err != nil {
			t.Fatal(err)
		}
		got, err := access.Pools(t.Context())
		if (err != nil) != (tt.err != nil) || errors.Is(tt.err, ErrPoolsUnknown) != errors.Is(err, ErrPoolsUnknown) {
			t.Errorf("%s, %d: %v, want %v", tt.api, tt.status, err, tt.err)
		}
		if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s, %d: (-want +got):\n%s", tt.api, tt.status, diff)
		}
	}
}
