package cluster

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestImageIsAnOCILayout(t *testing.T) {
	t.Parallel()
	img, err := packImage("example/probe:1", "probe", []byte("a program"))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, img.layout)
	var index struct {
		Manifests []struct {
			Digest      string
			Size        int
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	m := index.Manifests[0]
	if m.Digest != img.digest || m.Annotations["io.containerd.image.name"] != "example/probe:1" {
		t.Errorf("index %+v", m)
	}
	// Every blob has the digest and the size that refer to it.
	for name, content := range files {
		if hash, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && blob(content).digest() != "sha256:"+hash {
			t.Errorf("%s has digest %s", name, blob(content).digest())
		}
	}
	manifest := files["blobs/sha256/"+strings.TrimPrefix(m.Digest, "sha256:")]
	if len(manifest) != m.Size {
		t.Errorf("the manifest has %d bytes, not %d", len(manifest), m.Size)
	}
	again, err := packImage("example/probe:1", "probe", []byte("a program"))
	if err != nil {
		t.Fatal(err)
	}
	if again.digest != img.digest || !bytes.Equal(again.layout, img.layout) {
		t.Error("equal programs give different images")
	}
}

func TestLayerHasTheProgramWherePeopleLook(t *testing.T) {
	t.Parallel()
	layer, err := packLayer("probe", []byte("a program"))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, layer)
	if files["bin/probe"] != "a program" || files["probe"] != "-> bin/probe" {
		t.Errorf("layer %v", files)
	}
}

// untar returns the contents of regular files, and where links point.
func untar(t *testing.T, content []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
		if h.Typeflag == tar.TypeSymlink {
			files[h.Name] = "-> " + h.Linkname
		}
	}
}

func TestImageListIsReadByNameAndDigest(t *testing.T) {
	t.Parallel()
	const table = "REF TYPE DIGEST SIZE PLATFORMS LABELS\ntranche.local/pause:dev application/x sha256:aa 1.4 MiB linux/amd64 x\n"
	if !listed(table, PauseImage, "sha256:aa") || listed(table, PauseImage, "sha256:bb") || listed(table, ProbeImage, "sha256:aa") {
		t.Error("listed is wrong")
	}
}
