package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/tranche-dev/tranche/nodeplugin/nvml/models"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/tests/cluster"
)

const (
	// crowded is the namespace of the pods that run.
	crowded = "crowded"
	// spares are the first nodes, which stay empty: a pod that needs a whole node
	// fits there alone, and only who knows all pods can say so.
	spares = 2
	// perGPU is how many of the pods share a GPU.
	perGPU = 4
)

// crowd are pods that run, each on a quarter of a GPU. They are put into etcd as
// the API server would have written them after all had been created, bound and
// started, which would take an hour for a hundred thousand. It serves them like
// any others, and nobody else notices.
type crowd struct {
	*kit
	like *corev1.Pod
	// put writes to etcd.
	put func(ctx context.Context, pods []*corev1.Pod) error
	// on counts the pods of each node, total those of all.
	on    []int
	total int
}

// gather prepares for them, and for the calls, while the whole control plane
// runs.
func (b *scaleBench) gather(ctx context.Context) (*crowd, error) {
	for i := range b.nodes {
		b.caller.nodes = append(b.caller.nodes, fmt.Sprintf("%s%d", cluster.SimNodePrefix, i))
	}
	var err error
	if b.caller.pod, err = b.like(ctx, quarter(namespace, "next")); err != nil {
		return nil, err
	}
	if _, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowded}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	put, err := etcdPut(b.kube)
	return &crowd{kit: b.kit, like: b.caller.pod, put: put, on: make([]int, b.nodes)}, err
}

// pod is the i-th pod of a node.
func (c *crowd) pod(node, i int) (*corev1.Pod, error) {
	name := fmt.Sprintf("%s%d", cluster.SimNodePrefix, node)
	plan, err := contract.Plan{Node: name, Containers: map[string][]contract.Grant{
		"main": {{GPU: models.UUID(name, i/perGPU), Shares: 100 / perGPU, MemoryMiB: 81920 / perGPU}},
	}}.Format()
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	pod := c.like.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: crowded, Name: fmt.Sprintf("trainer-%d-%d", node, i), UID: uuid.NewUUID(), Generation: 1, CreationTimestamp: now,
		Labels: c.like.Labels, Annotations: map[string]string{contract.PlanAnnotation: plan},
	}
	maps.Copy(pod.Annotations, c.like.Annotations)
	pod.Spec.NodeName = name
	pod.Status = running(&pod.Spec, now)
	return pod, nil
}

// running is the status that a kubelet writes.
func running(spec *corev1.PodSpec, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, QOSClass: corev1.PodQOSBurstable}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for i := range spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name: spec.Containers[i].Name, Image: spec.Containers[i].Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return s
}

// fill adds pods until there are so many, always to the emptiest nodes, and
// returns when the extender has heard of all.
func (c *crowd) fill(ctx context.Context, total int) error {
	began := time.Now()
	for level := 0; c.total < total; level++ {
		var pods []*corev1.Pod
		for node := spares; node < len(c.on) && c.total < total; node++ {
			if c.on[node] > level {
				continue
			}
			pod, err := c.pod(node, c.on[node])
			if err != nil {
				return err
			}
			pods = append(pods, pod)
			c.on[node]++
			c.total++
		}
		if err := c.put(ctx, pods); err != nil {
			return err
		}
		// Too many at once, and the API server would end the watches.
		if err := c.known(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "%d pods after %v\n", c.total, time.Since(began).Round(time.Second))
	return nil
}

// known returns when the extender has heard of all pods.
func (c *crowd) known(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, longPatience, true, func(ctx context.Context) (bool, error) {
		n, err := c.gauge(ctx, "tranche_extender_gpu_shares", `state="allocated"`)
		return n == c.total*100/perGPU, err
	})
}

// etcdPut returns a function that writes pods to etcd over its JSON gateway: each
// by itself, since the API server reckons that no two objects of a kind have the
// same revision.
func etcdPut(kube *cluster.Cluster) (func(ctx context.Context, pods []*corev1.Pod) error, error) {
	url, tls := kube.Etcd()
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: tls})
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport}
	// As the API server stores them: "k8s", a zero, and a runtime.Unknown.
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	one := func(ctx context.Context, pod *corev1.Pod) error {
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		value, err := runtime.Encode(codec, pod)
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string][]byte{"key": fmt.Appendf(nil, "/registry/pods/%s/%s", pod.Namespace, pod.Name), "value": value})
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v3/kv/put", bytes.NewReader(body))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("etcd: %s: %.300s", response.Status, answer)
		}
		return err
	}
	return func(ctx context.Context, pods []*corev1.Pod) error {
		return each(len(pods), func(i int) error { return one(ctx, pods[i]) })
	}, nil
}
