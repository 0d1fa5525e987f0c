package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTraces removes what a real node has outside of the cluster's directory.
// It goes by names derived from the directory, not by what was remembered.
func (c *Cluster) removeTraces(ctx context.Context) error {
	if !isRoot() {
		return nil // only root can have made any
	}
	n := network{Bridge: bridgeName(c.paths.hash())}
	if _, err := os.Stat(n.sys()); err == nil {
		if err := n.removeBridge(ctx); err != nil {
			return err
		}
	}
	return c.paths.removeCgroup(ctx)
}

// unmountBelow unmounts what is mounted in dir, which is nothing unless
// somebody did so by hand: deleting would go on into it.
func unmountBelow(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("mount table: %w", err)
	}
	for _, at := range slices.Backward(mountPointsBelow(string(table), dir)) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// mountPointsBelow lists mount points in the order in which they were made.
// The table has spaces and the like as octal escapes.
func mountPointsBelow(table, dir string) []string {
	var points []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := unescapeOctal(f[4])
		if at == dir || strings.HasPrefix(at, filepath.Clean(dir)+"/") {
			points = append(points, at)
		}
	}
	return points
}

func unescapeOctal(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
