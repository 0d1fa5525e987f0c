package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

const (
	share = "nvidia.com/gpu-share"
	whole = "nvidia.com/gpu"
)

func grants(gpu contract.GPUUUID, shares units.Shares) []contract.Grant {
	return []contract.Grant{{GPU: gpu, Shares: shares, MemoryMiB: 1}}
}

func app(uid, name string) ledger.Pod {
	return ledger.Pod{UID: types.UID(uid), Namespace: "ns", Name: name, Roles: []contract.ContainerRole{{Name: "main"}}}
}

func open(t *testing.T, path string) *ledger.Store {
	t.Helper()
	s, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s *ledger.Store, about ledger.Pod, container string, c ledger.Container) {
	t.Helper()
	if err := s.Update(func(st *ledger.State) bool { st.Put(about, container, c); return true }); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasWrittenSurvivesAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "ledger.json")
	s := open(t, path)
	put(t, s, app("u1", "a"), "main", ledger.Container{Resource: share, IDs: []string{"g::0", "g::1"}, Grants: grants("g", 2)})
	if err := s.Update(func(st *ledger.State) bool { return st.Advertised("g", "h") }); err != nil {
		t.Fatal(err)
	}
	again := open(t, path).State()
	if diff := cmp.Diff(s.State().Pods(), again.Pods()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if !again.WasAdvertised("h") || again.WasAdvertised("x") {
		t.Error("the advertised GPUs are lost")
	}
}

func TestAChangeThatIsNotWrittenDidNotHappen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "ledger.json"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := s.Update(func(st *ledger.State) bool {
		st.Put(app("u1", "a"), "main", ledger.Container{Resource: share})
		return true
	})
	if err == nil || s.State().Pod("u1") != nil {
		t.Errorf("Update: %v; pod %v", err, s.State().Pod("u1"))
	}
}

func TestADamagedFileIsMovedAside(t *testing.T) {
	for name, text := range map[string]string{
		"cut short":        `{"v":1,"pods":[`,
		"empty":            "",
		"of the future":    `{"v":2,"gpus":null,"pods":null}`,
		"a pod twice":      `{"v":1,"gpus":[],"pods":[{"uid":"u","namespace":"","name":"","roles":[],"containers":{"c":{"resource":"r","ids":[],"grants":[]}}},{"uid":"u","namespace":"","name":"","roles":[],"containers":{"c":{"resource":"r","ids":[],"grants":[]}}}]}`,
		"an ID of nothing": `{"v":1,"gpus":[],"pods":[{"uid":"u","namespace":"","name":"","roles":[],"containers":{"c":{"resource":"r","ids":["x"],"grants":[]}}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.json")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := ledger.Open(path)
			if !errors.Is(err, ledger.ErrCorrupt) || s == nil {
				t.Fatalf("Open: %v, %v", s, err)
			}
			if len(s.State().Pods()) > 0 {
				t.Errorf("pods: %v", s.State().Pods())
			}
			if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != text {
				t.Errorf("the damaged file: %q %v", kept, err)
			}
			put(t, s, app("u1", "a"), "main", ledger.Container{Resource: share, IDs: []string{"g::0"}})
		})
	}
}

func TestNoTemporaryFileIsLeft(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "ledger.json"))
	put(t, s, app("u1", "a"), "main", ledger.Container{Resource: share, IDs: []string{"g::0"}})
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 { // the file and its lock
		t.Errorf("%v %v", entries, err)
	}
}

func TestTwoProcessesKeepOneBook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	stores := []*ledger.Store{open(t, path), open(t, path)}
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for n := range 20 {
				name := fmt.Sprintf("p%d-%d", i, n)
				err := s.Update(func(st *ledger.State) bool {
					st.Put(app("uid-"+name, name), "main", ledger.Container{Resource: share, IDs: []string{"g::0"}})
					return true
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i, s := range stores {
		if got := len(s.State().Pods()); got != 40 {
			t.Errorf("process %d sees %d pods; want 40", i, got)
		}
	}
}

func TestARemovedFileIsWrittenAgainWithAllThatIsKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	s := open(t, path)
	put(t, s, app("u1", "a"), "main", ledger.Container{Resource: share, IDs: []string{"g::0"}})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	put(t, s, app("u2", "b"), "main", ledger.Container{Resource: share, IDs: []string{"g::1"}})
	if got := len(open(t, path).State().Pods()); got != 2 {
		t.Errorf("%d pods; want 2", got)
	}
}

func TestAFileThatAnotherVersionWroteIsNotOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	s := open(t, path)
	put(t, s, app("u1", "a"), "main", ledger.Container{Resource: share, IDs: []string{"g::0"}})
	const newer = `{"v":2}`
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	err := s.Update(func(st *ledger.State) bool { return st.Release("u1") })
	if !errors.Is(err, ledger.ErrCorrupt) {
		t.Errorf("Update: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != newer {
		t.Errorf("%s %v", text, err)
	}
}

func TestChargesCountWhatIsStillToCome(t *testing.T) {
	about := ledger.Pod{
		UID: "u1", Roles: []contract.ContainerRole{{Name: "init", Role: contract.RoleInit}, {Name: "a"}, {Name: "b"}},
		Planned: map[string][]contract.Grant{"init": grants("g", 50), "a": grants("g", 30), "b": grants("g", 40)},
	}
	var st ledger.State
	st.Put(about, "init", ledger.Container{Resource: share, Grants: grants("g", 50)})
	if got := st.Pod("u1").Charges()["g"]; got != 70 {
		t.Errorf("charge = %d; want 70, the apps to come", got)
	}
	// The kubelet gave another GPU than planned.
	st.Put(about, "a", ledger.Container{Resource: share, Grants: grants("h", 30)})
	if diff := cmp.Diff(map[contract.GPUUUID]units.Shares{"g": 50, "h": 30}, st.Pod("u1").Charges()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	st.Put(app("u2", "other"), "main", ledger.Container{Resource: whole, Grants: grants("h", 100)})
	if diff := cmp.Diff(map[contract.GPUUUID]units.Shares{"h": 100}, st.Charged("u1")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !st.Release("u1") || st.Release("u1") || st.Pod("u1") != nil {
		t.Error("Release")
	}
}

func TestHoldersTellResourcesApartAndNameTheLastContainer(t *testing.T) {
	about := ledger.Pod{UID: "u1", Roles: []contract.ContainerRole{{Name: "z", Role: contract.RoleInit}, {Name: "a"}}}
	var st ledger.State
	st.Put(about, "z", ledger.Container{Resource: share, IDs: []string{"g::0", "g::1"}})
	st.Put(about, "a", ledger.Container{Resource: share, IDs: []string{"g::1"}})
	st.Put(app("u2", "w"), "main", ledger.Container{Resource: whole, IDs: []string{"g::0"}})
	got := map[string]string{}
	for id, h := range st.Holders(share) {
		got[id] = string(h.Pod.UID) + "/" + h.Container
	}
	if diff := cmp.Diff(map[string]string{"g::0": "u1/z", "g::1": "u1/a"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !st.Holds("u1", "a", share) || st.Holds("u1", "a", whole) || st.Holds("u9", "a", share) {
		t.Error("Holds")
	}
}

func TestCloneIsIndependent(t *testing.T) {
	var st ledger.State
	st.Put(app("u1", "a"), "main", ledger.Container{Resource: share})
	c := st.Clone()
	c.Put(app("u1", "a"), "other", ledger.Container{Resource: share})
	c.Put(app("u2", "b"), "main", ledger.Container{Resource: share})
	c.Advertised("g")
	if len(st.Pods()) != 1 || len(st.Pod("u1").Containers) != 1 || st.WasAdvertised("g") {
		t.Errorf("the original changed: %+v", st.Pods())
	}
}

func TestGrantsAreNeverLessThanTheDevices(t *testing.T) {
	ids, err := slice.Parse([]string{"g::0", "g::1", "g::2", "h::0"})
	if err != nil {
		t.Fatal(err)
	}
	planned := []contract.Grant{{GPU: "g", Shares: 2, MemoryMiB: 7}, {GPU: "x", Shares: 9}}
	want := []contract.Grant{{GPU: "g", Shares: 3, MemoryMiB: 7}, {GPU: "h", Shares: 1}}
	if diff := cmp.Diff(want, ledger.GrantsFor(ids, planned, 1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = []contract.Grant{{GPU: "g", Shares: 25, MemoryMiB: 7}}
	if diff := cmp.Diff(want, ledger.GrantsFor(ids[:1], []contract.Grant{{GPU: "g", Shares: 25, MemoryMiB: 7}}, 1)); diff != "" {
		t.Errorf("a plan in memory (-want +got):\n%s", diff)
	}
}

func TestDropForgetsTheContainerThenThePod(t *testing.T) {
	about := ledger.Pod{UID: "u1", Roles: []contract.ContainerRole{{Name: "a"}, {Name: "b"}}}
	var st ledger.State
	st.Put(about, "a", ledger.Container{Resource: share, Grants: grants("g", 10)})
	st.Put(about, "b", ledger.Container{Resource: share, Grants: grants("g", 20)})
	before := st.Clone()
	st.Drop("u1", "a")
	if st.Holds("u1", "a", share) || !st.Holds("u1", "b", share) || !before.Holds("u1", "a", share) {
		t.Errorf("after one: %+v, the clone: %+v", st.Pod("u1"), before.Pod("u1"))
	}
	st.Drop("u1", "b")
	st.Drop("u9", "b")
	if st.Pod("u1") != nil {
		t.Errorf("after both: %+v", st.Pod("u1"))
	}
}
