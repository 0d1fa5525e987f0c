package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ip runs iproute2's ip; Go's standard library cannot make interfaces.
func ip(ctx context.Context, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// usedPrefixes are all networks that the machine has a route to, apart from
// the default: its interfaces' own and those behind VPNs.
func usedPrefixes(ctx context.Context) ([]netip.Prefix, error) {
	out, err := ip(ctx, "-json", "-4", "route", "show", "table", "all")
	if err != nil {
		return nil, err
	}
	return parseRoutes(out)
}

func parseRoutes(out []byte) ([]netip.Prefix, error) {
	var routes []struct {
		Dst string `json:"dst"`
	}
	if err := json.Unmarshal(out, &routes); err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if p, err := netip.ParsePrefix(r.Dst); err == nil {
			used = append(used, p)
		} else if a, err := netip.ParseAddr(r.Dst); err == nil {
			used = append(used, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return used, nil
}

// createBridge makes the interface that carries the node's address. The CNI
// plugin would make it too, but only with the first pod.
func (n network) createBridge(ctx context.Context) error {
	if _, err := os.Stat(n.sys()); err != nil {
		if _, err := ip(ctx, "link", "add", n.Bridge, "type", "bridge"); err != nil {
			return fmt.Errorf("create the node's bridge: %w", err)
		}
	}
	address := netip.PrefixFrom(n.node(), n.Subnet.Bits()).String()
	for _, args := range [][]string{
		{"addr", "replace", address, "dev", n.Bridge},
		{"link", "set", n.Bridge, "up"},
	} {
		if _, err := ip(ctx, args...); err != nil {
			return fmt.Errorf("create the node's bridge: %w", err)
		}
	}
	return nil
}

func (n network) sys() string { return filepath.Join("/sys/class/net", n.Bridge) }

// removeBridge takes the pods' interfaces away as well: the kernel would, some
// time after the last process in a pod's network namespace has ended.
func (n network) removeBridge(ctx context.Context) error {
	ports, err := filepath.Glob(filepath.Join(n.sys(), "brif", "*"))
	if err != nil {
		return fmt.Errorf("ports of %s: %w", n.Bridge, err)
	}
	for _, p := range append(ports, n.sys()) {
		if _, err := ip(ctx, "link", "delete", filepath.Base(p)); err != nil {
			if _, gone := os.Stat(filepath.Join("/sys/class/net", filepath.Base(p))); gone != nil {
				continue // it went by itself
			}
			return fmt.Errorf("remove the node's network: %w", err)
		}
	}
	return nil
}
