package cluster

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
)

// port names a port of the cluster.
type port string

// One port for each thing that listens.
const (
	portEtcd              port = "etcd"
	portEtcdPeer          port = "etcd-peer"
	portAPIServer         port = "kube-apiserver"
	portControllerManager port = "kube-controller-manager"
	portScheduler         port = "kube-scheduler"
	portKwok              port = "kwok"
	portKubelet           port = "kubelet"
	portKubeletHealth     port = "kubelet-health"
	portExtender          port = "extender"
	portExtenderMetrics   port = "extender-metrics"
	portWebhook           port = "webhook"
	portWebhookMetrics    port = "webhook-metrics"
	portWebhookHealth     port = "webhook-health"
	portNodePluginMetrics port = "nodeplugin-metrics"
)

// allPorts lists them in the order in which they are chosen.
func allPorts() []port {
	return []port{
		portEtcd, portEtcdPeer, portAPIServer, portControllerManager, portScheduler, portKwok,
		portKubelet, portKubeletHealth, portExtender, portExtenderMetrics,
		portWebhook, portWebhookMetrics, portWebhookHealth, portNodePluginMetrics,
	}
}

// Ports are looked for below the kernel's ephemeral range (from 32768): there
// any outgoing connection could take a port while its owner restarts.
const (
	firstPort = 20000
	portCount = 12000
)

// ports are the numbers in use, chosen at the first Up and kept.
type ports map[port]int

// address is where something listens, or is reached, on this machine.
func (p ports) address(name port) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p[name]))
}

// choosePorts gives every name that has none, or one that is not usable, a
// free number. The search starts at a place derived from the cluster's hash, so
// that two clusters starting at the same time look in different places.
func choosePorts(hash string, have ports, usable func(int) bool) (ports, error) {
	seed, err := hex.DecodeString(hash)
	if err != nil || len(seed) < 4 {
		return nil, fmt.Errorf("cluster hash %q: want 8 hexadecimal digits", hash)
	}
	next := int(binary.BigEndian.Uint32(seed) % portCount)
	chosen, taken := ports{}, map[int]bool{}
	for _, name := range allPorts() {
		if n := have[name]; n != 0 && usable(n) {
			chosen[name], taken[n] = n, true
		}
	}
	for _, name := range allPorts() {
		for tried := 0; chosen[name] == 0; tried++ {
			if tried == portCount {
				return nil, fmt.Errorf("no free port between %d and %d for %s", firstPort, firstPort+portCount-1, name)
			}
			n := firstPort + next
			next = (next + 1) % portCount
			if !taken[n] && usable(n) {
				chosen[name], taken[n] = n, true
			}
		}
	}
	return chosen, nil
}

// portFree says whether a program could listen on the port now.
func portFree(ctx context.Context) func(int) bool {
	return func(n int) bool {
		// All addresses, as another program may have it on any of them.
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(n))
		if err != nil {
			return false
		}
		return l.Close() == nil
	}
}

// rememberedPorts returns the ports of the last Up, and chooses where there is
// no remembered one. With nothing of ours running, ports that others have taken
// meanwhile are chosen anew.
func (p paths) rememberedPorts(ctx context.Context, anythingRuns bool) (ports, error) {
	have := ports{}
	if err := readJSON(p.in("ports.json"), &have); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	free := portFree(ctx)
	usable := free
	if anythingRuns {
		usable = func(n int) bool { return have.contains(n) || free(n) }
	}
	chosen, err := choosePorts(p.hash(), have, usable)
	if err != nil {
		return nil, err
	}
	return chosen, writeJSON(p.in("ports.json"), chosen)
}

func (p ports) contains(n int) bool {
	for _, have := range p {
		if have == n {
			return true
		}
	}
	return false
}

// checkFree fails, naming port and owner, if one of the ports that a program is
// about to listen on is taken.
func (p ports) checkFree(ctx context.Context, program string, names ...port) error {
	free := portFree(ctx)
	var taken []string
	for _, name := range names {
		if !free(p[name]) {
			taken = append(taken, strconv.Itoa(p[name]))
		}
	}
	if len(taken) == 0 {
		return nil
	}
	return fmt.Errorf("port %s, which %s of this cluster has used so far, is taken by another program (ss -ltnp shows which): end that one, or choose new ports with cluster-down and cluster-up",
		strings.Join(taken, " and "), program)
}
