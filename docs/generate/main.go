// Command generate writes the pages of docs/reference that can be had from the
// code: flags, metrics and API. It takes the repository's top folder as working
// directory.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	// It would become a default.
	if err := os.Unsetenv("NODE_NAME"); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
	pages := map[string]func() (string, error){
		"configuration.md": configuration,
		"metrics.md":       metricsPage,
		"api.md":           api,
	}
	for name, page := range pages {
		text, err := page()
		if err == nil {
			err = os.WriteFile(filepath.Join("docs", "reference", name), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "generate: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

const generated = "<!-- Generated from the code by \"make generate\". -->\n\n"

// cell makes a text fit into one cell of a Markdown table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// code quotes a value; nothing stays nothing.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}
