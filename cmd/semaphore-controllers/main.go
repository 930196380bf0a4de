// Command semaphore-controllers is the programs of the control plane in one binary, because
// most of each is the same libraries. It does what the name says by which it is called; the
// image has a link for each.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

func main() { os.Exit(call(os.Args)) }

// programs are the programs by name.
func programs() map[string]func(args []string) (code int) {
	return map[string]func([]string) int{
		"semaphore-policy":         policyProgram().Main,
		"semaphore-relay":          relayProgram().Main,
		"semaphore-service-mirror": mirrorProgram().Main,
		"semaphore-tokens":         tokensProgram().Main,
	}
}

// call runs the program that the first argument names, with the arguments after it.
func call(args []string) (code int) {
	all := programs()
	if len(args) > 0 {
		if program := all[filepath.Base(args[0])]; program != nil {
			return program(args[1:])
		}
	}
	fmt.Fprintf(os.Stderr, "semaphore-controllers: call it by the name of a program, through a link: %s\n",
		strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	return process.ExitUsage
}
