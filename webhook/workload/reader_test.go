package workload_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tranche-dev/tranche/webhook/mutate"
	"github.com/tranche-dev/tranche/webhook/workload"
)

func meta(namespace, name, uid string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(uid),
		Labels:      map[string]string{"app": "x", "tranche.dev/gang": name},
		Annotations: map[string]string{"tranche.dev/gang-min-count": "4", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
	}
}

// ownedBy is a pod with a controller of that kind, and another owner beside it.
func ownedBy(apiVersion, kind, name, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: "bystander", UID: "bystander"},
		{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid), Controller: new(true)},
	}}}
}

// setting is a Reader over objects, with what went through it.
type setting struct {
	*workload.Reader
	mu      sync.Mutex
	reads   []string
	results []workload.Result
	// fail, if set, is called before each read.
	fail func(context.Context) error
}

func set(objects ...client.Object) *setting {
	s := &setting{}
	api := fake.NewClientBuilder().WithScheme(clientscheme.Scheme).WithRESTMapper(workload.Mapper()).WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				s.mu.Lock()
				s.reads = append(s.reads, fmt.Sprintf("%T %s %s", o, o.GetObjectKind().GroupVersionKind(), key))
				s.mu.Unlock()
				if s.fail != nil {
					if err := s.fail(ctx); err != nil {
						return err
					}
				}
				return c.Get(ctx, key, o, opts...)
			},
		}).Build()
	s.Reader = workload.New(api, clock.RealClock{}, func(r workload.Result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.results = append(s.results, r)
	})
	return s
}

func TestOwnerIsReadByKind(t *testing.T) {
	objects := []client.Object{
		&batchv1.Job{ObjectMeta: meta("ns", "job", "1")},
		&appsv1.ReplicaSet{ObjectMeta: meta("ns", "rs", "2")},
		&appsv1.StatefulSet{ObjectMeta: meta("ns", "sts", "3")},
		&appsv1.DaemonSet{ObjectMeta: meta("ns", "ds", "4")},
		&corev1.ReplicationController{ObjectMeta: meta("ns", "rc", "5")},
	}
	found := func(kind, name string) *mutate.Owner {
		return &mutate.Owner{
			Kind: kind, Name: name,
			Labels: map[string]string{"tranche.dev/gang": name}, Annotations: map[string]string{"tranche.dev/gang-min-count": "4"},
		}
	}
	cases := map[string]struct {
		namespace  string
		pod        *corev1.Pod
		want       *mutate.Owner
		wantRead   string
		wantResult workload.Result
	}{
		"no owner":                   {namespace: "ns", pod: &corev1.Pod{}},
		"no controller":              {namespace: "ns", pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "1"}}}}},
		"a kind that is foreign":     {namespace: "ns", pod: ownedBy("kubeflow.org/v1", "PyTorchJob", "job", "1")},
		"a node, as for static pods": {namespace: "ns", pod: ownedBy("v1", "Node", "n", "1")},
		"the kind in another group":  {namespace: "ns", pod: ownedBy("example.com/v1", "Job", "job", "1")},
		"no kind at all":             {namespace: "ns", pod: ownedBy("a/b/c", "Job", "job", "1")},
		"a Job":                      {namespace: "ns", pod: ownedBy("batch/v1", "Job", "job", "1"), want: found("Job", "job"), wantRead: "batch/v1, Kind=Job ns/job", wantResult: workload.ResultRead},
		"a Job of another version":   {namespace: "ns", pod: ownedBy("batch/v9", "Job", "job", "1"), want: found("Job", "job"), wantRead: "batch/v1, Kind=Job ns/job", wantResult: workload.ResultRead},
		"a ReplicaSet":               {namespace: "ns", pod: ownedBy("apps/v1", "ReplicaSet", "rs", "2"), want: found("ReplicaSet", "rs"), wantRead: "apps/v1, Kind=ReplicaSet ns/rs", wantResult: workload.ResultRead},
		"a StatefulSet":              {namespace: "ns", pod: ownedBy("apps/v1", "StatefulSet", "sts", "3"), want: found("StatefulSet", "sts"), wantRead: "apps/v1, Kind=StatefulSet ns/sts", wantResult: workload.ResultRead},
		"a DaemonSet":                {namespace: "ns", pod: ownedBy("apps/v1", "DaemonSet", "ds", "4"), want: found("DaemonSet", "ds"), wantRead: "apps/v1, Kind=DaemonSet ns/ds", wantResult: workload.ResultRead},
		"a ReplicationController":    {namespace: "ns", pod: ownedBy("v1", "ReplicationController", "rc", "5"), want: found("ReplicationController", "rc"), wantRead: "/v1, Kind=ReplicationController ns/rc", wantResult: workload.ResultRead},
		"one that is gone": {
			namespace: "other", pod: ownedBy("batch/v1", "Job", "job", "1"), wantRead: "batch/v1, Kind=Job other/job", wantResult: workload.ResultUnread,
			want: &mutate.Owner{Kind: "Job", Name: "job", Unread: "does not exist any more"},
		},
		"one that was replaced": {
			namespace: "ns", pod: ownedBy("batch/v1", "Job", "job", "9"), wantRead: "batch/v1, Kind=Job ns/job", wantResult: workload.ResultUnread,
			want: &mutate.Owner{Kind: "Job", Name: "job", Unread: "was replaced by another of that name"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := set(objects...)
			got, err := s.Owner(t.Context(), tc.namespace, tc.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("owner (-want +got):\n%s", diff)
			}
			var wantReads []string
			var wantResults []workload.Result
			if tc.wantRead != "" { // metadata only, and once
				wantReads, wantResults = []string{"*v1.PartialObjectMetadata " + tc.wantRead}, []workload.Result{tc.wantResult}
			}
			if diff := cmp.Diff(wantReads, s.reads); diff != "" {
				t.Errorf("reads (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantResults, s.results); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOwnerThatCannotBeReadNow(t *testing.T) {
	job := schema.GroupResource{Group: "batch", Resource: "jobs"}
	cases := map[string]struct {
		err        error
		wantUnread string
		wantError  string
	}{
		"no right":         {err: apierrors.NewForbidden(job, "job", errors.New("RBAC")), wantUnread: "tranche-webhook has no right to read it"},
		"an overload":      {err: apierrors.NewTooManyRequests("later", 1), wantError: "could not read Job ns/job, which may say that its pods are a gang; try again in a few seconds: "},
		"an inner error":   {err: apierrors.NewInternalError(errors.New("etcd")), wantError: "try again in a few seconds: "},
		"no connection":    {err: errors.New("connection refused"), wantError: "try again in a few seconds: connection refused"},
		"a server timeout": {err: apierrors.NewTimeoutError("slow", 1), wantError: "try again in a few seconds: "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := set(&batchv1.Job{ObjectMeta: meta("ns", "job", "1")})
			s.fail = func(context.Context) error { return tc.err }
			pod := ownedBy("batch/v1", "Job", "job", "1")
			got, err := s.Owner(t.Context(), "ns", pod)
			switch {
			case tc.wantUnread != "":
				if err != nil || got == nil || got.Unread != tc.wantUnread {
					t.Errorf("got %+v, %v", got, err)
				}
			case !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.wantError):
				t.Errorf("got %+v, %v", got, err)
			}
			// What went wrong is not kept: the next pod may be luckier.
			s.fail = nil
			if got, err := s.Owner(t.Context(), "ns", pod); err != nil || got.Unread != "" || got.Labels["tranche.dev/gang"] != "job" {
				t.Errorf("afterwards %+v, %v", got, err)
			}
		})
	}
}

func TestOwnerIsWaitedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := set(&batchv1.Job{ObjectMeta: meta("ns", "job", "1")})
		s.fail = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		start := time.Now()
		_, err := s.Owner(t.Context(), "ns", ownedBy("batch/v1", "Job", "job", "1"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if diff := cmp.Diff([]workload.Result{workload.ResultFailed}, s.results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

// A Job of 512 pods is one read, and the answer does not outlive a change by long.
func TestPodsOfOneOwnerShareARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := set(&batchv1.Job{ObjectMeta: meta("ns", "job", "1")})
		slow := 300 * time.Millisecond
		s.fail = func(ctx context.Context) error {
			select {
			case <-time.After(slow):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		pod := ownedBy("batch/v1", "Job", "job", "1")
		var all sync.WaitGroup
		for i := range 512 {
			ctx, cancel := context.WithCancel(t.Context())
			if i == 0 { // that the first to ask goes away is nobody else's loss
				time.AfterFunc(slow/2, cancel)
			}
			t.Cleanup(cancel)
			all.Go(func() {
				if owner, err := s.Owner(ctx, "ns", pod); err != nil || owner.Labels["tranche.dev/gang"] != "job" {
					t.Errorf("%+v, %v", owner, err)
				}
			})
			if i == 0 {
				synctest.Wait()
			}
		}
		all.Wait()
		if len(s.reads) != 1 || len(s.results) != 512 || slices.Index(s.results, workload.ResultRead) < 0 {
			t.Errorf("%d reads for %d pods", len(s.reads), len(s.results))
		}
		read := func() int {
			if _, err := s.Owner(t.Context(), "ns", pod); err != nil {
				t.Error(err)
			}
			return len(s.reads)
		}
		time.Sleep(9 * time.Second)
		if n := read(); n != 1 {
			t.Errorf("%d reads after 9 seconds, want 1", n)
		}
		time.Sleep(time.Second)
		if n := read(); n != 2 {
			t.Errorf("%d reads after 10 seconds, want 2", n)
		}
		// Another namespace's pods say what they like of their owner.
		if owner, err := s.Owner(t.Context(), "elsewhere", pod); err != nil || owner.Unread == "" || owner.Labels != nil {
			t.Errorf("a pod elsewhere learns %+v, %v", owner, err)
		}
	})
}

func TestResourcesAreNamedAsRBACNamesThem(t *testing.T) {
	want := []string{"batch/jobs", "apps/replicasets", "apps/statefulsets", "apps/daemonsets", "/replicationcontrollers"}
	if diff := cmp.Diff(want, workload.Resources()); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	for _, r := range want {
		group, resource, _ := strings.Cut(r, "/")
		if _, err := workload.Mapper().KindFor(schema.GroupVersionResource{Group: group, Resource: resource}); err != nil {
			t.Error(err)
		}
	}
}
