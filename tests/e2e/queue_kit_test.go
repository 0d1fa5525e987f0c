package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
)

// A yard is a cluster of simulated nodes for tests of queues alone: what a queue
// is entitled to depends on all GPUs of its cluster, and on all who want them.
type yard struct {
	kube    *cluster.Cluster
	client  kubernetes.Interface
	objects ctrlclient.Client
	// once says that one test has all of it: what is on it goes with the cluster.
	once bool
}

// newYard brings up a yard until the test ends.
func newYard(t *testing.T, name string, nodes int, extenderArgs ...string) *yard {
	t.Helper()
	o := cluster.DefaultOptions()
	o.Dir = filepath.Join(filepath.Dir(options.Dir), ".cluster-e2e-"+name)
	o.SimNodes, o.RealNode, o.ExtenderArgs = nodes, false, extenderArgs
	began := time.Now()
	kube, err := cluster.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if os.Getenv("TRANCHE_E2E_KEEP") != "" {
			return
		}
		if err := cluster.Down(context.WithoutCancel(t.Context()), o.Dir, io.Discard); err != nil {
			t.Error(err)
		}
	})
	t.Logf("cluster %s is up after %.1f s", name, time.Since(began).Seconds())
	y := &yard{kube: kube}
	if y.client, err = kube.Client(); err != nil {
		t.Fatal(err)
	}
	if y.objects, err = trancheClient(kube); err != nil {
		t.Fatal(err)
	}
	return y
}

// A plot is what one test has of a yard: a namespace with its pods, and queues
// whose names begin with the plot's. A test calls queues by what follows.
type plot struct {
	*testing.T
	*yard
	name, ns string
	queues   []string
	diary    *diary
}

// tend runs a test on a plot of its own. At its end every pod that still waits
// must have been told why, and nothing is left.
func (y *yard) tend(t *testing.T, name string, f func(p *plot)) {
	t.Run(name, func(t *testing.T) {
		began := time.Now()
		p := &plot{T: t, yard: y, name: name}
		p.ns = p.namespace(nil)
		p.diary = keepDiary(t, y.client, p.ns)
		t.Cleanup(p.clear)
		f(p)
		if !t.Failed() {
			p.wantReasons()
		}
		t.Logf("%s: %.1f s", name, time.Since(began).Seconds())
	})
}

// namespace makes one that opts in, until the test ends.
func (p *plot) namespace(labels map[string]string) string {
	p.Helper()
	all := map[string]string{contract.InjectLabel: contract.InjectEnabled}
	maps.Copy(all, labels)
	ns, err := p.client.CoreV1().Namespaces().Create(p.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: p.name + "-", Labels: all},
	}, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if !p.once {
			removeNamespaceOf(p.T, p.client, ns.Name)
		}
	})
	return ns.Name
}

// clear leaves the yard as it was: without pods no queue has anything, and
// nothing keeps it.
func (p *plot) clear() {
	if p.Failed() {
		p.Log(p.picture())
	}
	if p.once {
		return
	}
	removeNamespaceOf(p.T, p.client, p.ns)
	afterwards(p.T, "queues have nothing left", func(ctx context.Context) error {
		for _, name := range p.queues {
			var q v1alpha1.Queue
			if err := p.objects.Get(ctx, ctrlclient.ObjectKey{Name: name}, &q); err != nil {
				if apierrors.IsNotFound(err) {
					continue
				}
				return err
			}
			if gpus(q.Status.Allocated)+gpus(q.Status.Held)+gpus(q.Status.Demand) != 0 {
				return fmt.Errorf("queue %s: %+v", name, q.Status)
			}
		}
		return nil
	})
	afterwards(p.T, "queues are gone", func(ctx context.Context) error {
		left := 0
		for _, name := range p.queues {
			err := p.objects.Delete(ctx, &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if !apierrors.IsNotFound(err) {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
}

// q is the whole name of a queue.
func (p *plot) q(name string) string { return p.name + "-" + name }

// A term is something that a Queue says.
type term func(*v1alpha1.QueueSpec)

func gpu(n string) *resource.Quantity { return new(resource.MustParse(n)) }

func deserves(n string) term { return func(s *v1alpha1.QueueSpec) { s.Deserved.GPU = gpu(n) } }
func limit(n string) term    { return func(s *v1alpha1.QueueSpec) { s.Limit.GPU = gpu(n) } }
func weight(n int32) term    { return func(s *v1alpha1.QueueSpec) { s.Weight = n } }
func under(parent string) term {
	return func(s *v1alpha1.QueueSpec) { s.Parent = parent }
}

func stop(policy v1alpha1.StopPolicy) term {
	return func(s *v1alpha1.QueueSpec) { s.StopPolicy = policy }
}

func admission(mode v1alpha1.AdmissionMode) term {
	return func(s *v1alpha1.QueueSpec) { s.Admission = mode }
}

// queue makes a queue.
func (p *plot) queue(name string, terms ...term) {
	p.Helper()
	q := &v1alpha1.Queue{ObjectMeta: metav1.ObjectMeta{Name: p.q(name)}}
	for _, f := range terms {
		f(&q.Spec)
	}
	if err := p.objects.Create(p.Context(), q); err != nil {
		p.Fatal(err)
	}
	if !slices.Contains(p.queues, q.Name) {
		p.queues = append(p.queues, q.Name)
	}
}

// change edits a queue and returns when it asked for that.
func (p *plot) change(name string, terms ...term) (asked time.Time) {
	p.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		q := p.get(name)
		for _, f := range terms {
			f(&q.Spec)
		}
		asked = time.Now()
		return p.objects.Update(p.Context(), q)
	})
	if err != nil {
		p.Fatal(err)
	}
	return asked
}

func (p *plot) get(name string) *v1alpha1.Queue {
	p.Helper()
	var q v1alpha1.Queue
	if err := p.objects.Get(p.Context(), ctrlclient.ObjectKey{Name: p.q(name)}, &q); err != nil {
		p.Fatal(err)
	}
	return &q
}

// gpus reads an amount that the system reports; none is 0.
func gpus(u v1alpha1.QueueUsage) float64 {
	if u.GPU == "" {
		return 0
	}
	q := resource.MustParse(string(u.GPU))
	return q.AsApproximateFloat64()
}

// wantStatus waits until a queue's status is as it should be.
func (p *plot) wantStatus(name, what string, ok func(s *v1alpha1.QueueStatus) bool) {
	p.Helper()
	eventually(p.T, "queue "+name+" "+what, func(context.Context) error {
		if q := p.get(name); !ok(&q.Status) {
			return fmt.Errorf("status %+v", q.Status)
		}
		return nil
	})
}

func (p *plot) wantCondition(name, kind string, status metav1.ConditionStatus, reason string) {
	p.Helper()
	p.wantStatus(name, fmt.Sprintf("has condition %s=%s (%s)", kind, status, reason), func(s *v1alpha1.QueueStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, kind)
		return c != nil && c.Status == status && c.Reason == reason
	})
}
