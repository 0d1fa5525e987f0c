package extender

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseName is also the default name of everything else that this program owns.
const leaseName = "tranche-extender"

// errLostLease ends the process: another replica may be binding already.
var errLostLease = errors.New("the lease could not be renewed in time, so another replica may lead now")

// election is this replica's part in electing the leader.
type election struct {
	elector *leaderelection.LeaderElector
	leading atomic.Bool
	started chan struct{}
	// reserve is what is left of the lease when renewing is given up.
	reserve time.Duration
}

// newElection returns an election that this replica has won already if there
// is none.
func newElection(client kubernetes.Interface, o *Options, random string) (*election, error) {
	e := &election{started: make(chan struct{}), reserve: o.LeaseDuration - o.RenewDeadline}
	if !o.LeaderElect {
		close(e.started)
		return e, nil
	}
	identity, err := o.identity(random)
	if err != nil {
		return nil, err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, o.Namespace, leaseName, client.CoreV1(), client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: identity})
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: leaseName,
		LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				e.leading.Store(true)
				close(e.started)
			},
			OnStoppedLeading: func() { e.leading.Store(false) },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return e, nil
}

// run takes part until ctx ends; then it gives the lease back. It returns
// errLostLease if it had the lease and could not keep it.
func (e *election) run(ctx context.Context) error {
	if e.elector == nil {
		<-ctx.Done()
		return nil
	}
	e.elector.Run(ctx)
	if ctx.Err() == nil {
		return errLostLease
	}
	return nil
}

// leads says whether this replica may decide now. That ends before the elector
// says so: it first tries to give back a lease that it could not renew. And a
// process that was stopped for a while wakes up before its elector. Until the
// renewal's deadline nobody else can have the lease, whatever the clocks and
// however late the answer to the last renewal came.
func (e *election) leads() bool {
	if e.elector == nil {
		return true
	}
	return e.leading.Load() && e.elector.IsLeader() && e.elector.Check(-e.reserve) == nil
}
