package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is the name of the cluster's cgroup at the top of every hierarchy.
// All its pods are below it.
func (p paths) cgroup() string { return "tranche-" + p.hash() }

// cgroupMount is one mounted hierarchy: one of many (version 1) or the one
// (version 2). A machine may have both; then containers use version 1.
type cgroupMount struct {
	path        string
	v2          bool
	controllers []string
}

// cgroupMounts reads the hierarchies from the mount table.
func cgroupMounts() ([]cgroupMount, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	return parseCgroupMounts(string(table)), nil
}

// parseCgroupMounts understands proc_pid_mountinfo(5): the mount point is
// field 5; type, source and the hierarchy's options follow a lone dash.
func parseCgroupMounts(table string) []cgroupMount {
	var mounts []cgroupMount
	for line := range strings.Lines(table) {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup2":
			mounts = append(mounts, cgroupMount{path: left[4], v2: true})
		case "cgroup":
			mounts = append(mounts, cgroupMount{path: left[4], controllers: strings.Split(right[2], ",")})
		}
	}
	return mounts
}

// cgroupObstacle says why containers cannot be run, if they cannot.
func cgroupObstacle(mounts []cgroupMount) error {
	if err := missingControllers(mounts); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Access(m.path, unix.W_OK); err != nil {
			return fmt.Errorf("cgroups cannot be made in %s: %w", m.path, err)
		}
	}
	return nil
}

// missingControllers names what the kubelet needs and does not find
// (validateSystemRequirements in pkg/kubelet/cm/container_manager_linux.go).
func missingControllers(mounts []cgroupMount) error {
	missing := []string{"cpu", "cpuacct", "cpuset", "memory"}
	for _, m := range mounts {
		if m.v2 && m.path == "/sys/fs/cgroup" {
			return nil
		}
		missing = slices.DeleteFunc(missing, func(c string) bool { return slices.Contains(m.controllers, c) })
	}
	if len(missing) > 0 {
		return fmt.Errorf("no cgroup controllers %s: mount cgroup version 2 on /sys/fs/cgroup, or version 1 with these below it", strings.Join(missing, ", "))
	}
	return nil
}

// createCgroup makes the cluster's cgroup in every hierarchy: the kubelet
// refuses to start when its root is missing in one.
func (p paths) createCgroup() error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.v2 {
			if err := delegate(m.path); err != nil {
				return err
			}
		}
		dir := filepath.Join(m.path, p.cgroup())
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create cgroup: %w", err)
		}
		if m.v2 {
			if err := delegate(dir); err != nil {
				return err
			}
		}
		if slices.Contains(m.controllers, "cpuset") {
			if err := inheritCpuset(m.path, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate enables the controllers that the kubelet uses in a version 2 cgroup
// for those below it.
func delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroup controllers: %w", err)
	}
	used := []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}
	for c := range strings.FieldsSeq(string(available)) {
		if !slices.Contains(used, c) {
			continue
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		switch {
		case err == nil:
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("enable cgroup controller %s in %s: processes are in that cgroup itself, which version 2 forbids; move them into a child cgroup first (a container's init does, run with --init and cgroup namespace host): %w", c, dir, err)
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
			// Not every listed controller may be delegated (cpu while a
			// real-time process runs); the kubelet says which it misses.
		default:
			return fmt.Errorf("enable cgroup controller %s in %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCpuset gives a new version 1 cpuset its parent's CPUs and memory
// nodes: it starts with none, and then no process can enter it.
func inheritCpuset(parent, dir string) error {
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, f))
		if err != nil {
			return fmt.Errorf("cpuset: %w", err)
		}
		own := filepath.Join(dir, f)
		if old, err := os.ReadFile(own); err == nil && len(bytes.TrimSpace(old)) > 0 {
			continue
		}
		if err := os.WriteFile(own, value, 0o644); err != nil {
			return fmt.Errorf("cpuset: %w", err)
		}
	}
	return nil
}

// emptyCgroup kills every process of the cluster's pods and waits for their
// end. Nothing else is ever in this cgroup.
func (p paths) emptyCgroup(ctx context.Context) error {
	return eventually(ctx, 30*time.Second, 10*time.Millisecond, func(context.Context) error {
		pids, err := p.cgroupProcesses()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if err := signalIf(pid, syscall.SIGKILL, func() bool { return p.inCgroup(pid) }); err != nil {
				return err
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("%d processes are left in cgroup %s", len(pids), p.cgroup())
		}
		return nil
	})
}

func (p paths) inCgroup(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	return err == nil && strings.Contains(string(b), ":/"+p.cgroup()+"/")
}

func (p paths) cgroupProcesses() ([]int, error) {
	dirs, err := p.cgroupDirs()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if err != nil { // it went away, or is of a kind that has no processes
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(f)
			if err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// cgroupDirs are the cluster's cgroups in all hierarchies, parents first.
func (p paths) cgroupDirs() ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, m := range mounts {
		err := filepath.WalkDir(filepath.Join(m.path, p.cgroup()), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
	}
	return dirs, nil
}

// removeCgroup removes the emptied cgroup, children first.
func (p paths) removeCgroup(ctx context.Context) error {
	return eventually(ctx, 10*time.Second, 20*time.Millisecond, func(context.Context) error {
		dirs, err := p.cgroupDirs()
		if err != nil {
			return err
		}
		for _, d := range slices.Backward(dirs) {
			// The kernel needs a moment after the last process.
			if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove cgroup %s: %w", d, err)
			}
		}
		return nil
	})
}
