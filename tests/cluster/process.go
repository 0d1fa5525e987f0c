package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// process is how to start one program, complete enough to be written down and
// started again by another process than the one that put it together.
type process struct {
	Name string `json:"name"`
	// Args starts with the path of the program.
	Args []string `json:"args"`
	// Env is the whole environment beside the mark and what every program
	// gets: proxies and the like of the caller's must not leak in.
	Env []string `json:"env,omitempty"`
	// Namespace says in which mount namespace it runs.
	Namespace namespace `json:"namespace,omitempty"`
	// Files are those that the program reads once, when it starts: a change of
	// one asks for a restart.
	Files []string `json:"files,omitempty"`
}

// namespace is a choice of mount namespace.
type namespace string

const (
	// hostNamespace is the caller's own.
	hostNamespace namespace = ""
	// newNamespace makes the node's namespace; nodeNamespace joins it.
	newNamespace  namespace = "new"
	nodeNamespace namespace = "node"
	// kubeletNamespace is a copy of the node's namespace that shares its mounts
	// but has kernel settings of its own.
	kubeletNamespace namespace = "kubelet"
)

// holder keeps the node's mount namespace in existence while containerd, the
// kubelet and the node plugin are killed and restarted in it: it sleeps.
const holder = "node-mounts"

// record is a process that was started, as written to its pid file.
type record struct {
	process
	// Stamp is the process' fingerprint at the time.
	Stamp string `json:"stamp"`
	PID   int    `json:"pid"`
	// Started is field 22 of /proc/PID/stat, Boot the machine's boot id: with
	// the id they are one process for ever.
	Started uint64 `json:"started"`
	Boot    string `json:"boot"`
}

// fingerprint changes whenever a running program is no longer the wanted one:
// other arguments, other binary, other files.
func (p process) fingerprint() (string, error) {
	h := sha256.New()
	wanted, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("describe %s: %w", p.Name, err)
	}
	h.Write(wanted)
	binary, err := filepath.EvalSymlinks(p.Args[0])
	if err != nil {
		return "", fmt.Errorf("program of %s: %w", p.Name, err)
	}
	if err := fingerprintBinary(h, binary); err != nil {
		return "", fmt.Errorf("program of %s: %w", p.Name, err)
	}
	for _, f := range p.Files {
		content, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("file of %s: %w", p.Name, err)
		}
		fmt.Fprintf(h, "%s %d\n", f, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// wholeUpTo is the size up to which a binary is read: Tranche's own are below.
// Reading Kubernetes' 160 MB five times would be most of what an idle Up does,
// and nobody touches those: they are in the cache.
const wholeUpTo = 100 << 20

// fingerprintBinary tells binaries apart by their content, as go build touches
// also those that it need not build; large ones by size and time of change.
func fingerprintBinary(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%s %d\n", path, info.Size())
	if info.Size() > wholeUpTo {
		fmt.Fprintf(h, "%d\n", info.ModTime().UnixNano())
		return nil
	}
	_, err = io.Copy(h, f)
	return err
}

func readRecord(path string) (record, error) {
	var r record
	err := readJSON(path, &r)
	return r, err
}
