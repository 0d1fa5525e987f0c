package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunTellsUsageFromFailure(t *testing.T) {
	cases := map[string]struct {
		args     []string
		wantCode int
		want     string
	}{
		"wrong setting":      {args: []string{"--shares-per-gpu=0"}, wantCode: 2, want: "--shares-per-gpu=0: write 1 to 1000"},
		"no such kubeconfig": {args: []string{"--kubeconfig=/does/not/exist"}, wantCode: 1, want: "api server access"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(tc.args, &stderr); code != tc.wantCode || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("code %d, stderr %s; want %d, %q", code, stderr.String(), tc.wantCode, tc.want)
			}
		})
	}
}
