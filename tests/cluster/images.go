package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// The images on the real node. No registry has them: pods that use them need
// imagePullPolicy Never or IfNotPresent.
const (
	// PauseImage sleeps.
	PauseImage = "tranche.local/pause:dev"
	// ProbeImage prints its environment and sleeps, or `exit CODE AFTER`.
	ProbeImage = "tranche.local/probe:dev"
)

// blob is content that is called by its digest.
type blob []byte

func (b blob) digest() string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// descriptor refers to a blob, as in the OCI image specification.
func (b blob) descriptor(mediaType string) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": b.digest(), "size": len(b)}
}

// image is an OCI image with one static program in it.
type image struct {
	layout []byte
	// digest is the manifest's, which is the image's.
	digest string
}

// packImage makes the image as a tar of an OCI layout. Equal programs give
// equal images: no times are recorded.
func packImage(name, program string, content []byte) (image, error) {
	layer, err := packLayer(program, content)
	if err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/bin/" + program}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.digest()}},
	})
	if err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": blob(config).descriptor("application/vnd.oci.image.config.v1+json"),
		"layers": []any{layer.descriptor("application/vnd.oci.image.layer.v1.tar")},
	})
	if err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	entry := blob(manifest).descriptor(manifestType)
	entry["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{entry}})
	if err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	files := []tarFile{
		{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0o644, index},
	}
	for _, b := range []blob{layer, config, manifest} {
		files = append(files, tarFile{"blobs/" + strings.Replace(b.digest(), ":", "/", 1), 0o644, b})
	}
	layout, err := packTar(files, nil)
	if err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	return image{layout: layout, digest: blob(manifest).digest()}, nil
}

// packLayer puts the program where a shell would find it, and at the root, where
// people guess it.
func packLayer(program string, content []byte) (blob, error) {
	return packTar([]tarFile{{"bin/" + program, 0o755, content}}, map[string]string{program: "bin/" + program})
}

type tarFile struct {
	name    string
	mode    int64
	content []byte
}

func packTar(files []tarFile, links map[string]string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	for name, target := range links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// importImages puts the test images into containerd, unless they are there.
func (c *Cluster) importImages(ctx context.Context) error {
	have, err := c.ctr(ctx, "images", "list")
	if err != nil {
		return err
	}
	for name, program := range map[string]string{PauseImage: "pause", ProbeImage: "probe"} {
		content, err := os.ReadFile(c.paths.bin(program))
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		img, err := packImage(name, program, content)
		if err != nil {
			return err
		}
		if listed(have, name, img.digest) {
			continue
		}
		file := c.paths.data(program + "-image.tar")
		if err := writeFile(file, img.layout, 0o644); err != nil {
			return err
		}
		if _, err := c.ctr(ctx, "images", "import", file); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	return nil
}

// listed looks for an image in the table that ctr prints.
func listed(table, name, digest string) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == name && f[2] == digest {
			return true
		}
	}
	return false
}

// ctr runs containerd's own client. Its Go package would bring half of
// containerd into the product's go.mod.
func (c *Cluster) ctr(ctx context.Context, args ...string) (string, error) {
	socket, err := c.containerdSocket()
	if err != nil {
		return "", err
	}
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, c.paths.bin("ctr"), append([]string{"--address=" + socket, "--namespace=k8s.io"}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
