// Command dockerfile parses a Dockerfile as BuildKit does, prints BuildKit's
// warnings on stderr and what each stage comes to on stdout as JSON, and fails
// if there was a warning. It is a module of its own, so that nothing else
// depends on BuildKit.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// Stage is one FROM and what follows it.
type Stage struct {
	Name string `json:"name"`
	// Base is an image or an earlier stage.
	Base       string   `json:"base"`
	User       string   `json:"user,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	// CopiesFrom are the stages that it copies files from.
	CopiesFrom []string `json:"copiesFrom,omitempty"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dockerfile FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dockerfile:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	tree, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return err
	}
	var problems []error
	for _, w := range tree.Warnings {
		problems = append(problems, errors.New(w.Short))
	}
	rules := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) {
		line := 0
		if len(at) > 0 {
			line = at[0].Start.Line
		}
		problems = append(problems, fmt.Errorf("line %d: %s: %s", line, rule, message))
	}})
	parsed, _, err := instructions.Parse(tree.AST, rules)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	stages := make([]Stage, 0, len(parsed))
	for _, p := range parsed {
		s := Stage{Name: p.Name, Base: p.BaseName}
		for _, c := range p.Commands {
			switch c := c.(type) {
			case *instructions.UserCommand:
				s.User = c.User
			case *instructions.EntrypointCommand:
				s.Entrypoint = c.CmdLine
			case *instructions.CopyCommand:
				if c.From != "" {
					s.CopiesFrom = append(s.CopiesFrom, c.From)
				}
				if c.From != "" && !known[c.From] {
					problems = append(problems, fmt.Errorf("stage %s copies from %s, which is no earlier stage", s.Name, c.From))
				}
			}
		}
		if !known[s.Base] && !strings.Contains(s.Base, ":") {
			problems = append(problems, fmt.Errorf("stage %s: image %s has no tag", s.Name, s.Base))
		}
		known[s.Name] = true
		stages = append(stages, s)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(stages)
}
