package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/nodeplugin/slice"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// fileVersion changes with the meaning of the file.
const fileVersion = 1

// file is the book as it is written.
type file struct {
	Version int                `json:"v"`
	GPUs    []contract.GPUUUID `json:"gpus"`
	Pods    []*Pod             `json:"pods"`
}

// ErrCorrupt is wrapped by the error that Open returns beside a usable Store
// when the file could not be read as a ledger.
var ErrCorrupt = errors.New("ledger file is damaged")

// Store keeps a State in a file. It is safe for concurrent use, also by two
// processes: while one node plugin takes over from another, both are registered
// with the kubelet and keep the same book.
type Store struct {
	path    string
	existed bool
	lock    *os.File

	mu sync.Mutex
	// state is what the file held when it was last looked at, seen the file
	// then; nil if there was none.
	state State
	seen  os.FileInfo
}

// Open reads the ledger at path, or starts an empty one. A damaged file is
// moved aside to path with ".damaged" appended: then Open returns both a Store,
// empty, and an error that wraps ErrCorrupt, and the caller rebuilds the book
// from the kubelet. Any other error means that there is no Store. The caller
// closes the Store.
func Open(path string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	s := &Store{path: path, lock: lock}
	unlock, err := s.exclude()
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	defer unlock()
	switch err := s.refresh(); {
	case err == nil:
		s.existed = s.seen != nil
		return s, nil
	case !errors.Is(err, ErrCorrupt):
		return nil, errors.Join(err, lock.Close())
	default:
		aside := path + ".damaged"
		if moveErr := os.Rename(path, aside); moveErr != nil {
			return nil, errors.Join(fmt.Errorf("ledger: %w", moveErr), lock.Close())
		}
		return s, fmt.Errorf("moved to %s: %w", aside, err)
	}
}

// Close releases the Store's files. The book stays.
func (s *Store) Close() error { return s.lock.Close() }

const (
	// lockFor bounds the wait for another process, which holds the lock for
	// milliseconds; the kernel takes it from one that was killed.
	lockFor  = 2 * time.Second
	lockStep = 2 * time.Millisecond
)

// exclude keeps other processes out until unlock is called.
func (s *Store) exclude() (unlock func(), err error) {
	fd := int(s.lock.Fd())
	for waited := time.Duration(0); ; waited += lockStep {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = syscall.Flock(fd, syscall.LOCK_UN) }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || waited >= lockFor {
			return nil, fmt.Errorf("ledger: lock %s: %w", s.lock.Name(), err)
		}
		<-time.NewTimer(lockStep).C
	}
}

// refresh reads the file if it is another than the one last seen; the caller
// holds s.mu, or is the only one who knows s.
func (s *Store) refresh() error {
	now, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Somebody who removes it does not make the pods go away: keep what is
		// known, and write it with the next change.
		return nil
	case err != nil:
		return fmt.Errorf("ledger: %w", err)
	case s.seen != nil && os.SameFile(s.seen, now) && s.seen.ModTime().Equal(now.ModTime()) && s.seen.Size() == now.Size():
		return nil
	}
	text, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	state, err := decode(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	s.state, s.seen = state, now
	return nil
}

func decode(text []byte) (State, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var f file
	if err := dec.Decode(&f); err != nil {
		return State{}, err
	}
	if f.Version != fileVersion {
		return State{}, fmt.Errorf("version %d is not %d", f.Version, fileVersion)
	}
	s := State{pods: map[types.UID]*Pod{}}
	s.Advertised(f.GPUs...)
	for _, p := range f.Pods {
		if p == nil || p.UID == "" || s.pods[p.UID] != nil || len(p.Containers) == 0 {
			return State{}, errors.New("a pod without UID or containers, or twice")
		}
		for name, c := range p.Containers {
			if _, err := slice.Parse(c.IDs); err != nil {
				return State{}, fmt.Errorf("pod %s/%s, container %s: %w", p.Namespace, p.Name, name, err)
			}
		}
		s.pods[p.UID] = p
	}
	return s, nil
}

// Existed says whether the book was there when it was opened.
func (s *Store) Existed() bool { return s.existed }

// State returns the book as it is in the file; as it was, if that cannot be
// read at present, which Update says. Changing it changes nothing else.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh()
	return s.state.Clone()
}

// Update changes the book. change works on a copy; if it returns true the copy
// is written to the disk, and only then takes the place of the old book. If
// writing fails, nothing has changed.
func (s *Store) Update(change func(*State) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := s.exclude()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.refresh(); err != nil {
		return err
	}
	next := s.state.Clone()
	if !change(&next) {
		return nil
	}
	f := file{Version: fileVersion, GPUs: slices.Sorted(maps.Keys(next.gpus)), Pods: next.Pods()}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := WriteFile(s.path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	s.state = next
	if s.seen, err = os.Stat(s.path); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// WriteFile replaces a file so that after a crash or a power failure it has
// the old or the new content, and after it returns the new one.
func WriteFile(path string, content []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	// The new name is on the disk only once its folder is.
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
