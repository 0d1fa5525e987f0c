package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// cacheDir holds built binaries, outside the checkout so that a fresh clone on
// the same machine does not build for a quarter of an hour again.
func cacheDir() (string, error) {
	dir := os.Getenv("TRANCHE_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("where to keep binaries: %w; set TRANCHE_CACHE", err)
		}
		dir = filepath.Join(user, "tranche")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	return dir, nil
}

// bundle is a set of programs that is built together and kept in one folder of
// the cache.
type bundle struct {
	// name is what a person reads; key is the start of the folder's name.
	name, key string
	// estimate says how long a first build takes.
	estimate string
	// dir is where the go command runs.
	dir string
	// sources are the files, relative to dir, that decide what comes out.
	sources []string
	steps   []buildStep
}

// buildStep is one `go build`.
type buildStep struct {
	// output is relative to the bundle's folder. A trailing slash makes it a
	// folder that takes all packages' programs.
	output   string
	packages []string
	flags    []string
	cgo      bool
}

// args of the go command. Nothing of the checkout's state gets in.
func (s buildStep) args(into string) []string {
	out := filepath.Join(into, s.output)
	if strings.HasSuffix(s.output, "/") {
		out += "/"
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false"}, s.flags...)
	return append(append(args, "-o", out), s.packages...)
}

// hash is the bundle's identity: the same sources, toolchain and flags give the
// same programs.
func (b bundle) hash(goVersion string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, goVersion, runtime.GOOS, runtime.GOARCH)
	for _, s := range b.steps {
		fmt.Fprintln(h, s.cgo, strings.Join(s.args(""), " "))
	}
	for _, f := range slices.Sorted(slices.Values(b.sources)) {
		content, err := os.ReadFile(filepath.Join(b.dir, f))
		if err != nil {
			return "", fmt.Errorf("sources of %s: %w", b.name, err)
		}
		fmt.Fprintln(h, f, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// build returns the folder with the bundle's programs, which it builds if this
// machine has not yet done so.
func (b bundle) build(ctx context.Context, say *progress, prepare func(context.Context) error) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	version, err := goCommand(ctx, b.dir, false, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	hash, err := b.hash(strings.TrimSpace(version))
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, b.key+"-"+hash)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	unlock, err := lock(ctx, filepath.Join(cache, b.key+".lock"), func() {
		say.say("another program is building %s; waiting for it", b.name)
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil {
		return final, nil // the other one built it
	}
	if err := prepare(ctx); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "."+b.key+"-*")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", b.name, err)
	}
	defer os.RemoveAll(tmp)
	err = say.during(ctx, fmt.Sprintf("building %s (first time only, %s)", b.name, b.estimate), func(ctx context.Context) error {
		for _, s := range b.steps {
			if _, err := goCommand(ctx, b.dir, s.cgo, s.args(tmp)...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("build %s: %w", b.name, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", b.name, err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("build %s: %w", b.name, err)
	}
	return final, nil
}

// goCommand runs the go command in dir and returns what it prints.
func goCommand(ctx context.Context, dir string, cgo bool, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	enabled := "0"
	if cgo {
		enabled = "1"
	}
	// The caller's flags and workspace are for the caller's module.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+enabled, "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the go command is not in PATH; Go builds everything that the cluster runs (https://go.dev/dl)")
	}
	if err != nil {
		const most = 4000 // the first errors matter, a broken build has thousands
		text := stderr.String()
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text[:min(len(text), most)])
	}
	return stdout.String(), nil
}

// link makes each of names in dir a symbolic link to the target that it maps to.
func link(dir string, links map[string]string) error {
	for name, target := range links {
		at := filepath.Join(dir, name)
		if old, err := os.Readlink(at); err == nil && old == target {
			continue
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if err := os.Symlink(target, at); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}
