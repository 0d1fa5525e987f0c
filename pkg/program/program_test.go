package program

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

type options struct {
	name  string
	list  []string
	count int
}

func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "name", "default", "a name")
	fs.StringSliceVar(&o.list, "list", nil, "a list")
	fs.IntVar(&o.count, "count", 1, "a count")
}

func (o *options) Validate() error {
	if o.count < 1 {
		return errors.New("--count must be at least 1")
	}
	return nil
}

func TestMainTellsUsageFromFailure(t *testing.T) {
	cases := map[string]struct {
		args       []string
		config     string
		fail       error
		wantCode   int
		wantStderr string
		wantName   string
	}{
		"defaults":             {wantName: "default"},
		"flag":                 {args: []string{"--name=a"}, wantName: "a"},
		"configuration file":   {config: "name: b\nlist: [x, y]\n", wantName: "b"},
		"flag beats file":      {args: []string{"--name=a"}, config: "name: b\n", wantName: "a"},
		"unknown key in file":  {config: "nmae: b\n", wantCode: 2, wantStderr: `"nmae" is not a setting`},
		"wrong value in file":  {config: "count: many\n", wantCode: 2, wantStderr: "count"},
		"unknown flag":         {args: []string{"--nope"}, wantCode: 2, wantStderr: "--help"},
		"invalid setting":      {args: []string{"--count=0"}, wantCode: 2, wantStderr: "--count must be at least 1"},
		"stray argument":       {args: []string{"stray"}, wantCode: 2, wantStderr: "stray"},
		"failure while it ran": {fail: errors.New("broken"), wantCode: 1, wantStderr: "broken", wantName: "default"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if tc.config != "" {
				path := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(path, []byte(tc.config), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", path)
			}
			o, got := &options{}, ""
			var stderr bytes.Buffer
			code := Main(Program{Name: "prog", Options: o, Run: func(context.Context) error {
				got = o.name
				return tc.fail
			}}, args, &stderr)
			if code != tc.wantCode || got != tc.wantName || !strings.Contains(stderr.String(), tc.wantStderr) {
				t.Errorf("code %d, name %q, stderr %q; want %d, %q, containing %q", code, got, stderr.String(), tc.wantCode, tc.wantName, tc.wantStderr)
			}
		})
	}
}
