package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCacheKeyChangesWithWhateverChangesThePrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m")
	write("main.go", "package main")
	write("README", "not a source")
	base := func() bundle {
		return bundle{dir: dir, sources: []string{"main.go", "go.mod"}, steps: []buildStep{{output: "a", packages: []string{"."}, flags: []string{"-tags", "x"}}}}
	}
	hash := func(b bundle, version string) string {
		t.Helper()
		h, err := b.hash(version)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	want := hash(base(), "go1.26.0")
	reordered := base()
	reordered.sources = []string{"go.mod", "main.go"}
	if got := hash(reordered, "go1.26.0"); got != want {
		t.Error("the order of the sources changes the key")
	}
	write("README", "changed")
	if got := hash(base(), "go1.26.0"); got != want {
		t.Error("a file that is no source changes the key")
	}
	if hash(base(), "go1.26.1") == want {
		t.Error("another toolchain has the same key")
	}
	flags := base()
	flags.steps[0].flags = []string{"-tags", "y"}
	if hash(flags, "go1.26.0") == want {
		t.Error("another flag has the same key")
	}
	cgo := base()
	cgo.steps[0].cgo = true
	if hash(cgo, "go1.26.0") == want {
		t.Error("cgo has the same key")
	}
	write("main.go", "package main // changed")
	if hash(base(), "go1.26.0") == want {
		t.Error("another source has the same key")
	}
}

func TestKubernetesVersionComesFromItsModule(t *testing.T) {
	t.Parallel()
	p, err := findPaths("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.kubernetesBundle()
	if err != nil {
		t.Fatal(err)
	}
	if b.name != "kubernetes 1.37.2" {
		t.Errorf("the bundle is called %q", b.name)
	}
	if _, err := b.hash("go"); err != nil {
		t.Error(err)
	}
	if _, err := p.nodeBundle().hash("go"); err != nil {
		t.Error(err)
	}
	if _, err := p.imageBundle().hash("go"); err != nil {
		t.Error(err)
	}
}
