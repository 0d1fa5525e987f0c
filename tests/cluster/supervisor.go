package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// markVariable is in the environment of every process of a cluster, with the
// cluster's directory as its value, and is inherited by what those start
// (containerd's shims): so that Down finds also what no pid file tells of.
const markVariable = "TRANCHE_LOCAL_CLUSTER"

// supervisor starts and kills a cluster's processes. They are detached: they
// go on when the program that started them ends.
type supervisor struct{ paths paths }

// ensure makes p run as described. It reports whether it had to start it.
func (s supervisor) ensure(ctx context.Context, p process) (started bool, err error) {
	stamp, err := p.fingerprint()
	if err != nil {
		return false, err
	}
	if r, ok := s.lookUp(p.Name); ok && r.alive() {
		if r.Stamp == stamp {
			return false, nil
		}
		if err := s.kill(ctx, p.Name, syscall.SIGTERM); err != nil {
			return false, err
		}
	}
	return true, s.launch(ctx, p, stamp)
}

// launch starts p whatever ran before under its name.
func (s supervisor) launch(ctx context.Context, p process, stamp string) error {
	logFile, err := os.OpenFile(s.paths.log(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer logFile.Close()
	// The child must outlive ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.Args[0], p.Args[1:]...)
	cmd.Env = append(slices.Clone(p.Env),
		markVariable+"="+s.paths.dir,
		"HOME="+s.paths.dir,
		"PATH="+s.paths.in("bin")+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	)
	cmd.Dir = s.paths.dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := s.startIn(p.Namespace, cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	r := record{process: p, Stamp: stamp, PID: cmd.Process.Pid}
	id, err := identify(r.PID)
	if err == nil {
		r.Started, r.Boot = id.started, id.boot
		err = writeJSON(s.paths.record(p.Name), r)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.Name, err), cmd.Process.Kill())
	}
	// Nobody waits for it: alive and kill reap it if it is still our child.
	return cmd.Process.Release()
}

// recorded returns the recorded process of that name.
func (s supervisor) recorded(name string) (record, error) {
	r, err := readRecord(s.paths.record(name))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%s was never started in this cluster; it has %s", name, strings.Join(s.names(), ", "))
	}
	return r, err
}

// names are all processes that were ever started, sorted.
func (s supervisor) names() []string {
	files, err := filepath.Glob(s.paths.record("*"))
	if err != nil { // a bad pattern only
		return nil
	}
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	slices.Sort(names)
	return names
}

// lookUp is recorded for those who do not mind if there is no pid file, or one
// that a power cut has emptied: the process is then gone too, or sweep finds it.
func (s supervisor) lookUp(name string) (record, bool) {
	r, err := readRecord(s.paths.record(name))
	return r, err == nil
}

func (s supervisor) running(name string) bool {
	r, ok := s.lookUp(name)
	return ok && r.alive()
}

// kill sends sig and waits until the process is gone. A process that does not
// go by itself within the patience is killed.
func (s supervisor) kill(ctx context.Context, name string, sig syscall.Signal) error {
	r, ok := s.lookUp(name)
	if !ok {
		return nil
	}
	const patience = 10 * time.Second // etcd and kube-apiserver need about one
	if err := r.signal(sig); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	gone := func(context.Context) error {
		if r.alive() {
			return fmt.Errorf("process %d is still there", r.PID)
		}
		return nil
	}
	if err := eventually(ctx, patience, 5*time.Millisecond, gone); err == nil {
		return nil
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if err := eventually(ctx, patience, 5*time.Millisecond, gone); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// lastLog returns the end of a process' log, for error messages.
func (s supervisor) lastLog(name string) string {
	const most = 2000
	b, err := os.ReadFile(s.paths.log(name))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}
