package docstest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const text = "# A program\n\nSee:\n\n    make demo\n\n```\n    not this\n```\n\n## Labels\n\nThe label\n\n" +
		"    example.org/name: \"true\"\n    SETTING=a.b\n\n- It prints:\n\n      $ kubectl get nodes | grep a\n      a-1   Ready\n\n" +
		"1. First, on a real cluster,\n   run\n\n       { printf a\n         sed b; } | cat\n\n   and\n\n       kubectl apply -k x\n\ntext\n"
	want := []Command{
		{File: "a.md", Line: 5, Chapter: "A program", Text: "make demo"},
		{File: "a.md", Line: 20, Text: "kubectl get nodes | grep a", Chapter: "Labels", Marked: true},
		{File: "a.md", Line: 26, Text: "{ printf a\n  sed b; } | cat", Chapter: "Labels", Marked: true},
		{File: "a.md", Line: 31, Text: "kubectl apply -k x", Chapter: "Labels", Marked: true},
	}
	if diff := cmp.Diff(want, parse("a.md", text)); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}
