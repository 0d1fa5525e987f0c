package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// modulePath is in the first line of the go.mod that marks the checkout.
const modulePath = "github.com/tranche-dev/tranche"

// paths says where everything is. root is the checkout, dir the cluster's
// directory; both are absolute and free of symbolic links, because the
// cluster's identity is derived from dir.
type paths struct {
	root, dir string
}

func (p paths) in(elem ...string) string { return filepath.Join(append([]string{p.dir}, elem...)...) }

func (p paths) bin(name string) string        { return p.in("bin", name) }
func (p paths) pki(name string) string        { return p.in("pki", name) }
func (p paths) conf(name string) string       { return p.in("conf", name) }
func (p paths) log(name string) string        { return p.in("log", name+".log") }
func (p paths) record(name string) string     { return p.in("run", name+".json") }
func (p paths) data(name string) string       { return p.in("data", name) }
func (p paths) node(name string) string       { return p.in("node", name) }
func (p paths) kubeconfig(user string) string { return p.conf(user + ".kubeconfig") }

// adminKubeconfig is the one that people use.
func (p paths) adminKubeconfig() string { return p.in("kubeconfig") }

// source is a file or folder of this package in the checkout.
func (p paths) source(elem ...string) string {
	return filepath.Join(append([]string{p.root, "tests", "cluster"}, elem...)...)
}

// create makes the folders that hold more than one program's files.
func (p paths) create() error {
	for _, d := range []string{"bin", "pki", "conf", "log", "run", "data", "node"} {
		if err := os.MkdirAll(p.in(d), 0o755); err != nil {
			return fmt.Errorf("create the cluster directory: %w", err)
		}
	}
	return nil
}

// hash stands for the cluster in names that are global on a machine.
func (p paths) hash() string {
	sum := sha256.Sum256([]byte(p.dir))
	return hex.EncodeToString(sum[:4])
}

// findPaths locates the checkout above the working directory and the
// cluster's directory, which is dir or, when that is empty, .cluster of the
// checkout.
func findPaths(dir string) (paths, error) {
	root, err := findRoot()
	if err != nil {
		return paths{}, err
	}
	if dir == "" {
		dir = filepath.Join(root, ".cluster")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return paths{}, fmt.Errorf("cluster directory: %w", err)
	}
	// The directory itself may not exist yet, its parent must.
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return paths{}, fmt.Errorf("cluster directory: %w", err)
	}
	return paths{root: root, dir: filepath.Join(parent, filepath.Base(dir))}, nil
}

func findRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for d := wd; ; d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module "+modulePath+"\n")) {
			return filepath.EvalSymlinks(d)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the checkout: %w", err)
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside a checkout of %s", wd, modulePath)
		}
	}
}
