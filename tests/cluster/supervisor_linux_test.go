package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newSupervisor(t *testing.T) supervisor {
	t.Helper()
	s := supervisor{paths{dir: t.TempDir()}}
	if err := s.paths.create(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEnsureStartsRestartsAndLeavesAlone(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	config := filepath.Join(s.paths.dir, "config")
	if err := os.WriteFile(config, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := process{Name: "sleeper", Args: []string{"/bin/sleep", "600"}, Files: []string{config}}
	pid := func() int {
		t.Helper()
		r, err := s.recorded("sleeper")
		if err != nil {
			t.Fatal(err)
		}
		return r.PID
	}
	ensure := func(p process, wantStarted bool) {
		t.Helper()
		started, err := s.ensure(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if started != wantStarted {
			t.Errorf("started = %t, want %t", started, wantStarted)
		}
		if !s.running("sleeper") {
			t.Error("it does not run")
		}
	}
	ensure(p, true)
	first := pid()
	ensure(p, false)
	if pid() != first {
		t.Error("an unchanged process was replaced")
	}
	// Another file, other arguments, death: each asks for a new process.
	if err := os.WriteFile(config, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(p, true)
	second := pid()
	p.Args = []string{"/bin/sleep", "601"}
	ensure(p, true)
	third := pid()
	if err := s.kill(t.Context(), "sleeper", 9); err != nil {
		t.Fatal(err)
	}
	if s.running("sleeper") {
		t.Error("it runs after kill")
	}
	ensure(p, true)
	if fourth := pid(); first == second || second == third || third == fourth {
		t.Errorf("process ids %d, %d, %d, %d", first, second, third, fourth)
	}
	if err := s.kill(t.Context(), "sleeper", 15); err != nil {
		t.Fatal(err)
	}
	if err := s.kill(t.Context(), "sleeper", 15); err != nil {
		t.Errorf("kill of what has ended: %v", err)
	}
	if err := s.kill(t.Context(), "never started", 15); err != nil {
		t.Errorf("kill of what never was: %v", err)
	}
}

func TestOutputIsAppendedToTheLog(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	for _, word := range []string{"one", "two"} {
		if _, err := s.ensure(t.Context(), process{Name: "echo", Args: []string{"/bin/sh", "-c", "echo " + word + " $HOME"}}); err != nil {
			t.Fatal(err)
		}
		if err := s.kill(t.Context(), "echo", 0); err != nil {
			t.Fatal(err)
		}
	}
	want := "one " + s.paths.dir + "\ntwo " + s.paths.dir + "\n"
	if got := s.lastLog("echo"); got != want {
		t.Errorf("log is %q, want %q", got, want)
	}
}

func TestUnknownNameSaysWhatThereIs(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	if err := writeJSON(s.paths.record("etcd"), record{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.recorded("ectd")
	if err == nil || !strings.Contains(err.Error(), "it has etcd") {
		t.Errorf("recorded(ectd) = %v", err)
	}
}
