package kubelet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/pkg/contract"
)

// Informer knows the node's pods from the API server. It is the source where
// the kubelet has no pods API, or does not answer yet because it is starting.
// It may be behind the kubelet or ahead of it.
type Informer struct {
	factory informers.SharedInformerFactory
	cache   cache.SharedIndexInformer
	lister  listers.PodLister
}

// NewInformer returns an Informer of the pods on one node, which keeps t
// informed. Call Run.
func NewInformer(client kubernetes.Interface, node string, t *Tracker) (*Informer, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(onlyWhatMatters),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		}))
	pods := factory.Core().V1().Pods()
	i := &Informer{factory: factory, cache: pods.Informer(), lister: pods.Lister()}
	_, err := i.cache.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { i.seen(o, t) },
		UpdateFunc: func(_, o any) { i.seen(o, t) },
		DeleteFunc: func(any) { t.signal() },
	})
	if err != nil {
		return nil, fmt.Errorf("informer of pods: %w", err)
	}
	return i, nil
}

func (i *Informer) seen(o any, t *Tracker) {
	if pod, ok := o.(*corev1.Pod); ok && assign.Ended(pod) {
		t.finish(pod.UID)
	}
	t.signal()
}

// onlyWhatMatters drops what assign.PodOf does not look at, which is most.
func onlyWhatMatters(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	pod.ManagedFields, pod.Labels, pod.OwnerReferences = nil, nil, nil
	plan, planned := pod.Annotations[contract.PlanAnnotation]
	pod.Annotations = nil
	if planned {
		pod.Annotations = map[string]string{contract.PlanAnnotation: plan}
	}
	pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.Tolerations = nil, nil, nil
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for c := range list {
			list[c] = corev1.Container{Name: list[c].Name, Resources: list[c].Resources, RestartPolicy: list[c].RestartPolicy}
		}
	}
	return pod, nil
}

// Run fills the cache until ctx ends.
func (i *Informer) Run(ctx context.Context) error {
	i.factory.StartWithContext(ctx)
	<-ctx.Done()
	i.factory.Shutdown()
	return nil
}

// errNotSynced: the API server has not answered yet.
var errNotSynced = errors.New("the API server's list of pods has not arrived yet")

// Pods reads the cache.
func (i *Informer) Pods(context.Context) (assign.PodList, error) {
	if !i.cache.HasSynced() {
		return assign.PodList{}, errNotSynced
	}
	pods, err := i.lister.List(labels.Everything())
	if err != nil {
		return assign.PodList{}, fmt.Errorf("informer of pods: %w", err)
	}
	return assign.PodList{Pods: pods}, nil
}

var _ assign.Pods = (*Informer)(nil)

// Either asks the kubelet, and the API server's cache while the kubelet has no
// pods API or does not answer on it.
type Either struct {
	Kubelet, APIServer assign.Pods
	metrics            *Metrics
}

// NewEither returns the source that --pod-source=auto stands for.
func NewEither(kubelet, apiServer assign.Pods, m *Metrics) *Either {
	return &Either{kubelet, apiServer, m}
}

var _ assign.Pods = (*Either)(nil)

// Pods lists the node's pods.
func (e *Either) Pods(ctx context.Context) (assign.PodList, error) {
	list, err := e.Kubelet.Pods(ctx)
	if err == nil || !unavailable(err) {
		return list, err
	}
	list, fallbackErr := e.APIServer.Pods(ctx)
	if fallbackErr != nil {
		return assign.PodList{}, errors.Join(err, fallbackErr)
	}
	e.metrics.fellBack()
	return list, nil
}
