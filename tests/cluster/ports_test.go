package cluster

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPortsAreKeptWhileUsable(t *testing.T) {
	t.Parallel()
	all := func(int) bool { return true }
	first, err := choosePorts("00000005", nil, all)
	if err != nil {
		t.Fatal(err)
	}
	if first[portEtcd] != firstPort+5 {
		t.Errorf("the first port is %d; the search begins at the hash", first[portEtcd])
	}
	seen := map[int]port{}
	for name, n := range first {
		if other, twice := seen[n]; twice {
			t.Errorf("%s and %s share port %d", name, other, n)
		}
		seen[n] = name
	}
	again, err := choosePorts("00000005", first, all)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("remembered ports changed (-first +again):\n%s", diff)
	}
	lost := first[portScheduler]
	moved, err := choosePorts("00000005", first, func(n int) bool { return n != lost })
	if err != nil {
		t.Fatal(err)
	}
	if moved[portScheduler] == lost || seen[moved[portScheduler]] != "" {
		t.Errorf("the scheduler's port %d, which is taken, became %d", lost, moved[portScheduler])
	}
	moved[portScheduler] = lost
	if diff := cmp.Diff(first, moved); diff != "" {
		t.Errorf("other ports changed too:\n%s", diff)
	}
}

func TestPortSearchWrapsAndEnds(t *testing.T) {
	t.Parallel()
	last := firstPort + portCount - 1
	got, err := choosePorts("00002edf", nil, func(n int) bool { return n == last || n < firstPort+len(allPorts()) }) // 0x2edf is 11999
	if err != nil {
		t.Fatal(err)
	}
	if got[portEtcd] != last || got[portEtcdPeer] != firstPort {
		t.Errorf("ports %d and %d; the search goes on at the start of the range", got[portEtcd], got[portEtcdPeer])
	}
	if _, err := choosePorts("00000000", nil, func(int) bool { return false }); err == nil || !strings.Contains(err.Error(), "no free port") {
		t.Errorf("with every port taken: %v", err)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, number, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p := ports{portScheduler: l.Addr().(*net.TCPAddr).Port}
	err = p.checkFree(t.Context(), Scheduler, portScheduler)
	if err == nil || !strings.Contains(err.Error(), "port "+number) || !strings.Contains(err.Error(), Scheduler) {
		t.Errorf("checkFree of a taken port = %v; want port and program", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.checkFree(t.Context(), Scheduler, portScheduler); err != nil {
		t.Errorf("checkFree of a free port = %v", err)
	}
}

func TestPortFileIsReadBack(t *testing.T) {
	t.Parallel()
	p := paths{dir: t.TempDir()}
	first, err := p.rememberedPorts(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.rememberedPorts(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("ports changed between two calls:\n%s", diff)
	}
}
