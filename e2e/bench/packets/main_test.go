package main

import (
	"testing"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

func TestLine(t *testing.T) {
	both := [2][]float64{{2, 3, 8}, {1, 2, 2}}
	r := measure.Compared("TCP", "Gbit/s", "wireguard-go", both[0], both[1], ratios(both))
	got := line(&r)
	want := "TCP               Gbit/s                       ours      3.00  beside      2.00  ratio 2.00 [1.50-4.00] of 3"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestProgramsThatAreCompared(t *testing.T) {
	programs, names, err := options{with: "/bin/other"}.programs()
	if err != nil {
		t.Fatal(err)
	}
	if names != [2]string{"ours", "other"} || len(programs[0]) != 2 || programs[0][1] != "serve" ||
		len(programs[1]) != 1 || programs[1][0] != "/bin/other" {
		t.Errorf("got %q, %q", programs, names)
	}
}
