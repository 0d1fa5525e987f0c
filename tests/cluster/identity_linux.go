package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// identity tells one process from all others that ever had its id.
type identity struct {
	started uint64
	boot    string
	// zombie is a process whose first thread has ended. Others may go on, and
	// hold its sockets: see threadsGone.
	zombie bool
}

// errGone says that there is no process of an id.
var errGone = errors.New("no such process")

// bootID names this run of the machine.
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
})

// identify returns the identity of the process that has the id now, or errGone.
func identify(pid int) (identity, error) {
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return identity{}, errGone
	}
	if err != nil {
		return identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	state, started, err := parseStat(stat)
	if err != nil {
		return identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return identity{started: started, boot: boot, zombie: state == 'Z' || state == 'X'}, nil
}

// parseStat takes the state and the start time out of /proc/PID/stat. The
// second field, the name, may hold anything, spaces and parentheses included:
// the rest is counted from its last parenthesis.
func parseStat(stat []byte) (state byte, started uint64, err error) {
	const stateField, startField = 3, 22 // counted from 1, proc_pid_stat(5)
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("stat %q has no name", stat)
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) <= startField-stateField || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("stat %q is too short", stat)
	}
	started, err = strconv.ParseUint(string(fields[startField-stateField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("stat %q: start time: %w", stat, err)
	}
	return fields[0][0], started, nil
}

// alive says whether any thread of exactly this process still runs.
func (r record) alive() bool {
	if r.PID <= 0 {
		return false
	}
	id, err := identify(r.PID)
	if err != nil || id.started != r.Started || id.boot != r.Boot {
		return false
	}
	if !id.zombie || !threadsGone(r.PID) {
		return true
	}
	// If it is our own child, nobody else will take it away.
	_, _ = unix.Wait4(r.PID, nil, unix.WNOHANG, nil)
	return false
}

// threadsGone says whether a zombie has no thread left: only then has the
// kernel closed its files, and a successor can listen on its ports. A handle is
// readable from that moment on (pidfd_open(2)).
func threadsGone(pid int) bool {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
	}
	defer unix.Close(handle)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}

// signal does nothing if the process has ended. The handle is taken before the
// identity is checked, so the signal cannot reach a successor with its id.
func (r record) signal(sig syscall.Signal) error {
	if r.PID <= 0 {
		return nil
	}
	return signalIf(r.PID, sig, r.alive)
}

func signalIf(pid int, sig syscall.Signal, is func() bool) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(handle)
	if !is() {
		return nil
	}
	if err := unix.PidfdSendSignal(handle, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// marked returns the ids of all processes that carry this cluster's mark.
// Other users' environments cannot be read; they hold no process of ours.
func marked(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && isMarked(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func isMarked(pid int, dir string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	mark := []byte(markVariable + "=" + dir)
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(v, mark) {
			return true
		}
	}
	return false
}

// sweep kills the cluster's processes that have no pid file: containerd's
// shims, and what an Up that was cut short had started.
func (s supervisor) sweep(ctx context.Context) error {
	return eventually(ctx, 30*time.Second, 10*time.Millisecond, func(context.Context) error {
		recorded := map[int]bool{}
		for _, name := range s.names() {
			if r, err := readRecord(s.paths.record(name)); err == nil && r.alive() {
				recorded[r.PID] = true
			}
		}
		pids, err := marked(s.paths.dir)
		if err != nil {
			return err
		}
		left := 0
		for _, pid := range pids {
			if recorded[pid] || pid == os.Getpid() {
				continue
			}
			left++
			if err := signalIf(pid, syscall.SIGKILL, func() bool { return isMarked(pid, s.paths.dir) }); err != nil {
				return err
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes are left", left)
		}
		return nil
	})
}
