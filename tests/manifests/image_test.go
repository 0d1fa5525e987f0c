package manifests

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stage is what tools/dockerfile prints of one FROM.
type stage struct {
	Name, Base, User string
	Entrypoint       []string
	CopiesFrom       []string
}

// BuildKit's parser and its warnings, on a machine that cannot build images.
func TestDockerfileHasATargetPerProgram(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "../../Dockerfile")
	cmd.Dir = filepath.Join(root, "tools", "dockerfile")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Logf("%s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var stages []stage
	if err := json.Unmarshal(out, &stages); err != nil {
		t.Fatal(err)
	}
	got := map[string]stage{}
	for _, s := range stages {
		got[s.Name] = s
	}
	for target, user := range map[string]string{"extender": "65532:65532", "webhook": "65532:65532", "nodeplugin": "0:0"} {
		s := got[target]
		want := stage{Name: target, Base: s.Base, User: user, Entrypoint: []string{"/tranche-" + target}, CopiesFrom: []string{"build"}}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("target %s (-want +got):\n%s", target, diff)
		}
	}
	// cgo: the node plugin needs glibc, which "static" lacks.
	if base := got["nodeplugin"].Base; base != "gcr.io/distroless/base-debian12:latest" {
		t.Errorf("the node plugin runs on %s", base)
	}
}
