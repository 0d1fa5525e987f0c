package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shadowed are the folders of the machine that the node's programs write to at
// fixed paths. In the node's namespace they are empty and in memory, so that
// the machine keeps no trace and two nodes do not meet.
var shadowed = []string{"/run", "/var/lib", "/var/log"}

// nodeMounts are the folders that the node's programs find at the paths they
// have on any machine, with what they are in the cluster directory: those that
// must outlive a restart of the machine.
func (s supervisor) nodeMounts() map[string]string {
	return map[string]string{
		"/var/lib/kubelet":    s.paths.node("kubelet"),
		"/var/lib/containerd": s.paths.node("containerd"),
		"/var/lib/tranche":    s.paths.node("tranche"),
		"/var/log/pods":       s.paths.node("logs"),
	}
}

// startIn starts cmd in a mount namespace. A child inherits the namespace of
// the thread that forks it, so a thread of its own changes its namespace,
// forks, and is thrown away: its goroutine ends without unlocking it.
func (s supervisor) startIn(ns namespace, cmd *exec.Cmd) error {
	// A session of its own: no Ctrl-C of the caller's terminal reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if ns == hostNamespace {
		return cmd.Start()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := s.enter(ns)
		if err == nil {
			err = cmd.Start()
		}
		result <- err
	}()
	return <-result
}

// namespaceObstacle says why no mount namespace can be made, as in a container
// whose root has few rights.
func namespaceObstacle() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // thrown away, as in startIn
		result <- unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("mount namespaces cannot be made (it takes CAP_SYS_ADMIN): %w", err)
	}
	return nil
}

// enter moves the calling thread into a mount namespace.
func (s supervisor) enter(ns namespace) error {
	// Threads that share their working directory cannot change namespaces.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the shared working directory: %w", err)
	}
	switch ns {
	case newNamespace:
		return s.makeNamespace()
	case nodeNamespace:
		return s.joinNamespace()
	case kubeletNamespace:
		if err := s.joinNamespace(); err != nil {
			return err
		}
		return s.shieldKernelSettings()
	case hostNamespace:
	}
	return nil
}

func (s supervisor) joinNamespace() error {
	r, err := readRecord(s.paths.record(holder))
	if err != nil || !r.alive() {
		return fmt.Errorf("the node's mount namespace is gone (its process %s has ended); bring the cluster up again", holder)
	}
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(r.PID), "ns", "mnt"))
	if err != nil {
		return fmt.Errorf("the node's mount namespace: %w", err)
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the node's mount namespace: %w", err)
	}
	return nil
}

// makeNamespace makes the node's namespace and everything mounted in it. It
// ends, and all its mounts with it, when its last process does.
func (s supervisor) makeNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// 1. See the machine's later mounts but show it none; then share among the
	// node's own namespaces, as volumes mounted by the kubelet must appear in
	// containerd's.
	for _, propagation := range []uintptr{unix.MS_SLAVE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("set mount propagation: %w", err)
		}
	}
	// 2. Hide the machine's folders, except what is ours below them.
	kept, err := s.openKept()
	defer kept.close()
	if err != nil {
		return err
	}
	for _, d := range shadowed {
		actual, err := filepath.EvalSymlinks(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("shadow %s: %w", d, err)
		}
		if err := unix.Mount("tranche", actual, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
			return fmt.Errorf("shadow %s: %w", d, err)
		}
		if err := kept.mountBelow(actual); err != nil {
			return err
		}
	}
	// 3. Put the cluster's folders where programs look for them.
	for at, from := range s.nodeMounts() {
		for _, d := range []string{at, from} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return fmt.Errorf("mount %s: %w", at, err)
			}
		}
		if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	return nil
}

// keptFolders are folders of ours, opened before anything is mounted over them.
type keptFolders map[string]*os.File

func (s supervisor) openKept() (keptFolders, error) {
	kept := keptFolders{}
	cache, err := cacheDir()
	if err != nil {
		return kept, err
	}
	for _, d := range []string{s.paths.root, s.paths.dir, cache} {
		actual, err := filepath.EvalSymlinks(d)
		if err != nil {
			return kept, fmt.Errorf("keep %s: %w", d, err)
		}
		if kept[actual] != nil {
			continue
		}
		if kept[actual], err = os.Open(actual); err != nil {
			return kept, fmt.Errorf("keep %s: %w", d, err)
		}
	}
	return kept, nil
}

func (k keptFolders) close() {
	for _, f := range k {
		_ = f.Close()
	}
}

// mountBelow makes visible again what a mount on dir has hidden. Outer folders
// come first, as inner ones may be mounts of their own.
func (k keptFolders) mountBelow(dir string) error {
	var below []string
	for d := range k {
		if strings.HasPrefix(d, dir+"/") {
			below = append(below, d)
		}
	}
	slices.Sort(below)
	for _, d := range below {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("keep %s: %w", d, err)
		}
		from := "/proc/self/fd/" + strconv.Itoa(int(k[d].Fd()))
		if err := unix.Mount(from, d, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s: %w", d, err)
		}
	}
	return nil
}

// kernelSettings are what the kubelet sets for the whole machine when it
// starts (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go,
// 1.37). A panic after an oops is fine for a server of its own and not for
// somebody's laptop.
var kernelSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// shieldKernelSettings gives the kubelet plain files to write instead. They are
// in a copy of the node's namespace that shares all other mounts, because a
// covered /proc would make runc refuse pods with user namespaces.
func (s supervisor) shieldKernelSettings() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make the kubelet's mount namespace: %w", err)
	}
	if err := unix.Mount("", "/proc", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("shield kernel settings: %w", err)
	}
	copies := s.paths.node("sysctl")
	if err := os.MkdirAll(copies, 0o755); err != nil {
		return fmt.Errorf("shield kernel settings: %w", err)
	}
	for _, k := range kernelSettings {
		actual := filepath.Join("/proc/sys", k)
		value, err := os.ReadFile(actual)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("shield kernel settings: %w", err)
		}
		own := filepath.Join(copies, strings.ReplaceAll(k, "/", "."))
		if err := writeFile(own, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(own, actual, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("shield kernel setting %s: %w", k, err)
		}
	}
	return nil
}
