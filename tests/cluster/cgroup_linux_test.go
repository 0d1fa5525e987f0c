package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	hybridTable = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	unifiedTable = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestCgroupHierarchiesAreReadFromTheMountTable(t *testing.T) {
	t.Parallel()
	got := parseCgroupMounts(hybridTable)
	want := []cgroupMount{
		{path: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"rw", "cpu", "cpuacct"}},
		{path: "/sys/fs/cgroup/cpuset", controllers: []string{"rw", "cpuset"}},
		{path: "/sys/fs/cgroup/memory", controllers: []string{"rw", "memory"}},
		{path: "/sys/fs/cgroup/unified", v2: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cgroupMount{})); diff != "" {
		t.Errorf("version 1 (-want +got):\n%s", diff)
	}
	got = parseCgroupMounts(unifiedTable)
	if diff := cmp.Diff([]cgroupMount{{path: "/sys/fs/cgroup", v2: true}}, got, cmp.AllowUnexported(cgroupMount{})); diff != "" {
		t.Errorf("version 2 (-want +got):\n%s", diff)
	}
}

func TestMissingControllersAreNamed(t *testing.T) {
	t.Parallel()
	if err := missingControllers(parseCgroupMounts(hybridTable)); err != nil {
		t.Errorf("version 1: %v", err)
	}
	if err := missingControllers(parseCgroupMounts(unifiedTable)); err != nil {
		t.Errorf("version 2: %v", err)
	}
	without := strings.ReplaceAll(hybridTable, "rw,memory", "rw,blkio")
	if err := missingControllers(parseCgroupMounts(without)); err == nil || !strings.Contains(err.Error(), "controllers memory:") {
		t.Errorf("without memory: %v", err)
	}
	if err := missingControllers(nil); err == nil || !strings.Contains(err.Error(), "cpu, cpuacct, cpuset, memory") {
		t.Errorf("without any: %v", err)
	}
}

func TestMountPointsBelowAFolder(t *testing.T) {
	t.Parallel()
	table := "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /a/b rw - tmpfs x rw\n3 1 0:3 / /a/b\\040c rw - tmpfs x rw\n4 2 0:4 / /a/b/d\\040e rw - tmpfs x rw\n"
	if diff := cmp.Diff([]string{"/a/b", "/a/b/d e"}, mountPointsBelow(table, "/a/b")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
