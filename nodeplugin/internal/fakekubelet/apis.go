package fakekubelet

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	pods "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

type podsServer struct {
	pods.UnimplementedPodsServer
	k *Kubelet
	s *servers
}

var errInitializing = status.Error(codes.FailedPrecondition, "Kubelet is initializing")

func (s *podsServer) ListPods(context.Context, *pods.ListPodsRequest) (*pods.ListPodsResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if !s.k.ready {
		return nil, errInitializing
	}
	answer := &pods.ListPodsResponse{}
	for _, uid := range s.k.order {
		p := *s.k.pods[uid]
		p.Status = s.k.effective(uid)
		text, err := p.Marshal()
		if err != nil {
			return nil, err
		}
		answer.Pods = append(answer.Pods, text)
	}
	return answer, nil
}

func (s *podsServer) WatchPods(_ *pods.WatchPodsRequest, stream grpc.ServerStreamingServer[pods.WatchPodsEvent]) error {
	events := make(chan *pods.WatchPodsEvent, 100)
	s.k.mu.Lock()
	if !s.k.ready {
		s.k.mu.Unlock()
		return errInitializing
	}
	for _, uid := range s.k.order {
		s.k.send(events, pods.EventType_ADDED, s.k.pods[uid], s.k.effective(uid))
	}
	events <- &pods.WatchPodsEvent{Type: pods.EventType_INITIAL_SYNC_COMPLETE}
	s.k.watchers[events] = true
	s.k.mu.Unlock()
	defer func() {
		s.k.mu.Lock()
		delete(s.k.watchers, events)
		s.k.mu.Unlock()
	}()
	for {
		select {
		case e := <-events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.s.ctx.Done():
			return status.Error(codes.Unavailable, "stopping")
		}
	}
}

// broadcast tells all watchers; the caller holds k.mu.
func (k *Kubelet) broadcast(kind pods.EventType, p *corev1.Pod, s corev1.PodStatus) {
	for w := range k.watchers {
		k.send(w, kind, p, s)
	}
}

func (k *Kubelet) send(w chan *pods.WatchPodsEvent, kind pods.EventType, p *corev1.Pod, s corev1.PodStatus) {
	c := *p
	c.Status = s
	if kind == pods.EventType_DELETED { // has no more than this
		c = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
	}
	text, err := c.Marshal()
	if err != nil {
		panic(err)
	}
	select {
	case w <- &pods.WatchPodsEvent{Type: kind, Pod: text}:
	default: // a slow watcher misses events, as with the real one
	}
}

type resourcesServer struct {
	podresources.UnimplementedPodResourcesListerServer
	k *Kubelet
}

func (s *resourcesServer) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.k.lists++
	s.k.purge() // the side effect that makes List dangerous
	return &podresources.ListPodResourcesResponse{}, nil
}

func (s *resourcesServer) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	for uid, p := range s.k.pods {
		if p.Namespace != r.GetPodNamespace() || p.Name != r.GetPodName() {
			continue
		}
		answer := &podresources.PodResources{Name: p.Name, Namespace: p.Namespace}
		add := func(container string) {
			c := &podresources.ContainerResources{Name: container}
			for resource, a := range s.k.devices[uid][container] {
				for _, id := range a.ids { // one entry per device
					c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
				}
			}
			answer.Containers = append(answer.Containers, c)
		}
		for _, c := range p.Spec.InitContainers { // ordinary ones are left out
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				add(c.Name)
			}
		}
		for _, c := range p.Spec.Containers {
			add(c.Name)
		}
		return &podresources.GetPodResourcesResponse{PodResources: answer}, nil
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
}

func (s *resourcesServer) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	answer := &podresources.AllocatableResourcesResponse{}
	for resource, devices := range s.k.all {
		for id, ok := range devices {
			if ok {
				answer.Devices = append(answer.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
			}
		}
	}
	return answer, nil
}
