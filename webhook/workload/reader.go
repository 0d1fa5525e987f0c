package workload

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

const (
	// budget is how long a read may take. The API server waits 5 s for our
	// answer (timeoutSeconds in the manifests), so that it hears our sentence.
	budget = time.Second
	// lifetime is how long an answer is used again: longer than it takes to
	// create the pods of a large Job, shorter than a person needs to label an
	// owner and wonder why new pods do not follow.
	lifetime = 10 * time.Second
	// capacity bounds the answers that are kept. One has a few hundred bytes.
	capacity = 4096
)

// Result is how an owner was found, for metrics; the set is fixed.
type Result string

// The results.
const (
	// ResultRead: the API server showed it.
	ResultRead Result = "read"
	// ResultCached: it was read a moment ago, or is being read for another pod.
	ResultCached Result = "cached"
	// ResultUnread: it is gone, or we may not read it. The pod is warned.
	ResultUnread Result = "unread"
	// ResultFailed: no answer in time, or an error. The pod is refused.
	ResultFailed Result = "failed"
)

// Reader reads owners. Its methods may be called at any time from anywhere.
type Reader struct {
	api     client.Reader
	clock   clock.PassiveClock
	observe func(Result)
	answers *lru.Cache[owner, answer]
	reads   singleflight.Group
}

// owner is whom a pod's owner reference means. Its UID alone would not do: pods
// say it themselves, and could name an object of another namespace.
type owner struct {
	kind            schema.GroupVersionKind
	namespace, name string
	uid             types.UID
}

func (o owner) String() string {
	return strings.Join([]string{o.kind.String(), o.namespace, o.name, string(o.uid)}, "|")
}

type answer struct {
	owner *mutate.Owner
	until time.Time
}

// New makes a Reader. api should have the RESTMapper of this package; observe is
// told of every owner that was looked for.
func New(api client.Reader, c clock.PassiveClock, observe func(Result)) *Reader {
	answers, err := lru.New[owner, answer](capacity)
	if err != nil {
		panic(err) // only a capacity below 1 is an error
	}
	return &Reader{api: api, clock: c, observe: observe, answers: answers}
}

// Owner returns what the controller of a pod in namespace says, nil if it has
// none or one of a kind that is not read. An owner that is gone or may not be
// read comes as such (mutate.Owner.Unread). An error means that there is one,
// and that it may well make the pod a member of a gang: letting the pod pass
// then would start it alone.
func (r *Reader) Owner(ctx context.Context, namespace string, pod *corev1.Pod) (*mutate.Owner, error) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return nil, nil
	}
	kind, ok := kindOf(ref)
	if !ok {
		return nil, nil
	}
	o := owner{kind: kind, namespace: namespace, name: ref.Name, uid: ref.UID}
	if a, ok := r.answers.Get(o); ok && r.clock.Now().Before(a.until) {
		r.observe(ResultCached)
		return a.owner, nil
	}
	first := false
	found, err, _ := r.reads.Do(o.String(), func() (any, error) {
		first = true
		// Others wait for this read, so it must not end with the first's request.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), budget)
		defer cancel()
		return r.read(ctx, o)
	})
	if err != nil {
		r.observe(ResultFailed)
		return nil, fmt.Errorf("could not read %s %s/%s, which may say that its pods are a gang; try again in a few seconds: %w", kind.Kind, namespace, ref.Name, err)
	}
	result := found.(*mutate.Owner)
	switch {
	case result.Unread != "":
		r.observe(ResultUnread)
	case first:
		r.observe(ResultRead)
	default:
		r.observe(ResultCached)
	}
	return result, nil
}

func (r *Reader) read(ctx context.Context, o owner) (*mutate.Owner, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(o.kind)
	found := &mutate.Owner{Kind: o.kind.Kind, Name: o.name}
	err := r.api.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: o.name}, m)
	switch {
	case apierrors.IsNotFound(err):
		found.Unread = "does not exist any more"
		return found, nil
	case apierrors.IsForbidden(err):
		found.Unread = "tranche-webhook has no right to read it"
		return found, nil
	case err != nil:
		return nil, err // the caller says what was read
	case m.UID != o.uid:
		found.Unread = "was replaced by another of that name"
		return found, nil
	}
	found.Labels, found.Annotations = ours(m.Labels), ours(m.Annotations)
	r.answers.Add(o, answer{owner: found, until: r.clock.Now().Add(lifetime)})
	return found, nil
}

// ours keeps what Tranche reads: annotations of owners may be large.
func ours(all map[string]string) map[string]string {
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !strings.HasPrefix(key, contract.Prefix) })
	return kept
}
