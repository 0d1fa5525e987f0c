package cluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStatCountsFromTheLastParenthesis(t *testing.T) {
	t.Parallel()
	const tail = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 8192 12"
	cases := map[string]struct {
		stat  string
		state byte
		start uint64
		bad   bool
	}{
		"plain":                    {stat: "12 (sleep) S" + tail, state: 'S', start: 4711},
		"spaces and parentheses":   {stat: "12 (a) Z 9 (b c)) R" + tail, state: 'R', start: 4711},
		"zombie":                   {stat: "12 (sleep) Z" + tail, state: 'Z', start: 4711},
		"no name":                  {stat: "12 sleep S" + tail, bad: true},
		"cut short":                {stat: "12 (sleep) S 1 1", bad: true},
		"start time is no number":  {stat: "12 (sleep) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 x 0", bad: true},
		"nothing behind the name)": {stat: "12 (sleep)", bad: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, start, err := parseStat([]byte(tc.stat))
			if (err != nil) != tc.bad || state != tc.state || start != tc.start {
				t.Errorf("parseStat = %c, %d, %v", state, start, err)
			}
		})
	}
}

// sleeper starts a process that sleeps until it is killed.
func sleeper(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func recordOf(t *testing.T, pid int) record {
	t.Helper()
	id, err := identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return record{PID: pid, Started: id.started, Boot: id.boot}
}

func TestARecordIsOneProcessOnly(t *testing.T) {
	t.Parallel()
	cmd := sleeper(t)
	r := recordOf(t, cmd.Process.Pid)
	if !r.alive() {
		t.Fatal("a running process is not alive")
	}
	// A process that got the id of one that has ended since, or had it before
	// the machine was restarted, is neither alive nor signalled.
	for name, other := range map[string]record{
		"later start": {PID: r.PID, Started: r.Started + 1, Boot: r.Boot},
		"other boot":  {PID: r.PID, Started: r.Started, Boot: "another"},
		"no process":  {},
	} {
		if other.alive() {
			t.Errorf("%s: counts as alive", name)
		}
		if err := other.signal(syscall.SIGKILL); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !r.alive() {
		t.Fatal("the process was killed by way of a record of another one")
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Nobody waits for the child: a zombie counts as ended, and is reaped.
	err := eventually(t.Context(), 10*time.Second, time.Millisecond, func(context.Context) error {
		if r.alive() {
			return errors.New("alive after SIGKILL")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identify(r.PID); !errors.Is(err, errGone) {
		t.Errorf("the zombie is still there: %v", err)
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		t.Errorf("signal to a process that has ended: %v", err)
	}
}

// headless, in the environment, makes this binary a process whose first thread
// has ended while others, those of Go's runtime, go on.
const headless = "TRANCHE_TEST_HEADLESS"

// Only before main is this certain to be the first thread.
func init() {
	if os.Getenv(headless) != "" {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

func TestAProcessIsAliveUntilItsLastThreadHasEnded(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{headless + "=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := recordOf(t, cmd.Process.Pid)
	err := eventually(t.Context(), 10*time.Second, time.Millisecond, func(context.Context) error {
		id, err := identify(r.PID)
		if err == nil && !id.zombie {
			err = errors.New("its first thread still runs")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !r.alive() {
		t.Error("it counts as ended while a thread runs")
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err = eventually(t.Context(), 10*time.Second, time.Millisecond, func(context.Context) error {
		if r.alive() {
			return errors.New("alive after its end")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestMarkedProcessesAreFoundByTheExactFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours := sleeper(t, markVariable+"="+dir)
	other := sleeper(t, markVariable+"="+dir+"2")
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	pids, err := marked(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(pids) != 1 || pids[0] != ours.Process.Pid {
		t.Fatalf("marked = %v, want %d", pids, ours.Process.Pid)
	}
	// A process without a pid file is swept away, one with it stays.
	s := supervisor{paths{dir: dir}}
	for _, d := range []string{"run", "log"} {
		if err := makeFolder(filepath.Join(dir, d)); err != nil {
			t.Fatal(err)
		}
	}
	r := recordOf(t, ours.Process.Pid)
	r.Name = "sleeper"
	if err := writeJSON(s.paths.record(r.Name), r); err != nil {
		t.Fatal(err)
	}
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !s.running("sleeper") {
		t.Fatal("sweep killed a recorded process")
	}
	if err := os.Remove(s.paths.record(r.Name)); err != nil {
		t.Fatal(err)
	}
	go func() { _ = ours.Wait() }() // sweep leaves the reaping of strangers to their parents
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("sweep killed another cluster's process: %v", err)
	}
}
