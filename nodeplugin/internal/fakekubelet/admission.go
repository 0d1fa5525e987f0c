package fakekubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	pods "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Admit makes the kubelet see a pod and admit it: give devices to all its
// containers, or fail it. The error is what the pod's status would say. The
// pod is not started.
func (k *Kubelet) Admit(ctx context.Context, pod *corev1.Pod) error {
	k.admission.Lock()
	defer k.admission.Unlock()
	k.mu.Lock()
	if k.running == nil {
		k.mu.Unlock()
		return k.errNotRunning()
	}
	if k.pods[pod.UID] == nil {
		k.order = append(k.order, pod.UID)
	}
	k.pods[pod.UID] = pod.DeepCopy()
	k.mu.Unlock()
	if err := k.admit(ctx, pod); err != nil {
		k.SetStatus(pod.UID, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Pod was rejected: " + err.Error()})
		return err
	}
	return nil
}

func (k *Kubelet) admit(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.InitContainers {
		if err := k.AllocateContainer(ctx, pod, &pod.Spec.InitContainers[i]); err != nil {
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := k.AllocateContainer(ctx, pod, &pod.Spec.Containers[i]); err != nil {
			return err
		}
	}
	return nil
}

// AllocateContainer gives devices to one container. The real kubelet also does
// this outside of admission, when it starts a container whose record it lost.
func (k *Kubelet) AllocateContainer(ctx context.Context, pod *corev1.Pod, c *corev1.Container) error {
	k.mu.Lock()
	if k.reuse[pod.UID] == nil {
		k.reuse = map[types.UID]map[string]map[string]bool{pod.UID: {}}
	}
	reuse := k.reuse[pod.UID]
	k.mu.Unlock()
	for name, q := range c.Resources.Limits {
		if err := k.allocateResource(ctx, pod, c.Name, string(name), int(q.Value()), reuse[string(name)]); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	init := slices.ContainsFunc(pod.Spec.InitContainers, func(i corev1.Container) bool {
		return i.Name == c.Name && (i.RestartPolicy == nil || *i.RestartPolicy != corev1.ContainerRestartPolicyAlways)
	})
	for resource, a := range k.devices[pod.UID][c.Name] {
		if reuse[resource] == nil {
			reuse[resource] = map[string]bool{}
		}
		for _, id := range a.ids {
			if init {
				reuse[resource][id] = true
			} else {
				delete(reuse[resource], id)
			}
		}
	}
	return nil
}

func (k *Kubelet) allocateResource(ctx context.Context, pod *corev1.Pod, container, resource string, required int, reuse map[string]bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, registered := k.all[resource]; !registered && k.allocated[resource] == nil {
		return nil // not a device plugin's resource
	}
	k.purge()
	if a, done := k.devices[pod.UID][container][resource]; done {
		if len(a.ids) != required {
			return fmt.Errorf("container %q changed request for resource %q", container, resource)
		}
		return nil
	}
	plugins := k.plugins[resource]
	if len(plugins) == 0 {
		return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	}
	p := plugins[len(plugins)-1]
	// From here on as devicesToAllocate.
	chosen := map[string]bool{}
	if k.allocated[resource] == nil {
		k.allocated[resource] = map[string]bool{}
	}
	take := func(ids map[string]bool) bool {
		for id := range ids { // in random order, as the kubelet's sets are
			if len(chosen) == required {
				break
			}
			if !chosen[id] {
				if k.allocated[resource] == nil {
					k.allocated[resource] = map[string]bool{}
				}
				chosen[id], k.allocated[resource][id] = true, true
			}
		}
		return len(chosen) == required
	}
	if !take(reuse) {
		available := map[string]bool{}
		for id, ok := range k.all[resource] {
			if ok && !k.allocated[resource][id] {
				available[id] = true
			}
		}
		if len(available) < required-len(chosen) {
			k.regenerate()
			return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", resource, required-len(chosen), len(available))
		}
		offered := slices.Concat(slices.Collect(maps.Keys(available)), slices.Collect(maps.Keys(chosen)))
		must := slices.Collect(maps.Keys(chosen))
		k.mu.Unlock()
		answer, err := p.client.GetPreferredAllocation(ctx, &dp.PreferredAllocationRequest{ContainerRequests: []*dp.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: offered, MustIncludeDeviceIDs: must, AllocationSize: int32(required)},
		}})
		k.mu.Lock()
		if err != nil {
			return fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
		}
		preferred := map[string]bool{}
		for _, c := range answer.GetContainerResponses() {
			for _, id := range c.GetDeviceIDs() {
				if available[id] {
					preferred[id] = true
				}
			}
		}
		if !take(preferred) && !take(available) {
			return fmt.Errorf("unexpectedly allocated less resources than required")
		}
	}
	ids := slices.Collect(maps.Keys(chosen))
	k.mu.Unlock()
	answer, err := p.client.Allocate(ctx, &dp.AllocateRequest{ContainerRequests: []*dp.ContainerAllocateRequest{{DevicesIds: ids}}})
	k.mu.Lock()
	if err != nil {
		k.regenerate()
		return fmt.Errorf("Allocate failed due to rpc error: code = %s desc = %s, which is unexpected", status.Code(err), status.Convert(err).Message()) //nolint:staticcheck // the kubelet's words
	}
	if k.devices[pod.UID] == nil {
		k.devices[pod.UID] = map[string]map[string]allocation{}
	}
	if k.devices[pod.UID][container] == nil {
		k.devices[pod.UID][container] = map[string]allocation{}
	}
	k.devices[pod.UID][container][resource] = allocation{ids, answer.GetContainerResponses()[0]}
	return nil
}

// purge frees the devices of pods that are not active; the caller holds k.mu.
func (k *Kubelet) purge() {
	purged := false
	for uid := range k.devices {
		pod := k.pods[uid]
		if pod == nil || terminal(k.effective(uid).Phase) {
			delete(k.devices, uid)
			purged = true
		}
	}
	if purged {
		k.regenerate()
	}
}

func terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// effective is the status that the kubelet would report; the caller holds k.mu.
func (k *Kubelet) effective(uid types.UID) corev1.PodStatus {
	if s := k.statuses[uid]; s != nil {
		return *s
	}
	if p := k.pods[uid]; p != nil {
		s := *p.Status.DeepCopy()
		if s.Phase == "" {
			s.Phase = corev1.PodPending
		}
		return s
	}
	return corev1.PodStatus{}
}

// SetStatus makes the kubelet report a status.
func (k *Kubelet) SetStatus(uid types.UID, s corev1.PodStatus) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.statuses[uid] = &s
	if p := k.pods[uid]; p != nil {
		k.broadcast(pods.EventType_MODIFIED, p, s)
	}
}

// StartPod makes the pod's containers run.
func (k *Kubelet) StartPod(uid types.UID) {
	k.mu.Lock()
	pod := k.pods[uid]
	k.mu.Unlock()
	if pod == nil {
		return
	}
	s := corev1.PodStatus{Phase: corev1.PodRunning}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: running})
	}
	k.mu.Lock()
	pod.Status = s // the API server gets it too, so that it survives a restart
	k.mu.Unlock()
	k.SetStatus(uid, s)
}

// FinishPod ends the pod's containers. The pod stays in the list.
func (k *Kubelet) FinishPod(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pod := k.pods[uid]
	if pod == nil {
		return
	}
	s := corev1.PodStatus{Phase: corev1.PodSucceeded}
	k.statuses[uid], pod.Status = &s, s
	k.broadcast(pods.EventType_DELETED, pod, corev1.PodStatus{})
}

// RemovePod takes the pod out of the list: after FinishPod that is a deletion;
// before, a deletion by force, after which the containers still run until
// EndForced.
func (k *Kubelet) RemovePod(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, uid)
	k.order = slices.DeleteFunc(k.order, func(o types.UID) bool { return o == uid })
}

// EndForced says that the containers of a pod which is in no list are gone.
func (k *Kubelet) EndForced(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broadcast(pods.EventType_DELETED, pod, corev1.PodStatus{})
}
