package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/tests/cluster"
	"github.com/tranche-dev/tranche/tests/testkit"
)

// caller calls the extender as kube-scheduler does (pkg/scheduler/extender.go of
// 1.37): with its certificate, over the one connection that Go's transport makes,
// one call after the other.
type caller struct {
	extender schedulerv1.Extender
	client   *http.Client
	// nodes are the names of all nodes, pod is what is to be placed.
	nodes []string
	pod   *corev1.Pod
}

// newCaller reads the configuration that kube-scheduler itself has.
func newCaller(kube *cluster.Cluster) (*caller, error) {
	text, err := os.ReadFile(kube.SchedulerConfig())
	if err != nil {
		return nil, err
	}
	var config schedulerv1.KubeSchedulerConfiguration
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	e := config.Extenders[0]
	if !e.NodeCacheCapable {
		return nil, fmt.Errorf("%s: nodeCacheCapable is off", kube.SchedulerConfig())
	}
	tls, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		ServerName: e.TLSConfig.ServerName, CAFile: e.TLSConfig.CAFile, CertFile: e.TLSConfig.CertFile, KeyFile: e.TLSConfig.KeyFile,
	}})
	if err != nil {
		return nil, err
	}
	return &caller{extender: e, client: &http.Client{
		Transport: utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls}), Timeout: e.HTTPTimeout.Duration,
	}}, nil
}

// ask is one call. took is the time from the request to the whole of the answer,
// whole that with JSON on this side.
func (c *caller) ask(ctx context.Context, verb string, pod *corev1.Pod, answer any) (took, whole time.Duration, err error) {
	began := time.Now()
	body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod, NodeNames: &c.nodes})
	if err != nil {
		return 0, 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.extender.URLPrefix, "/")+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	response, err := c.client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	took = time.Since(sent)
	if err != nil {
		return 0, 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: %s: %.300s", verb, response.Status, body)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", verb, err)
	}
	return took, time.Since(began), nil
}

// filter asks where the pod fits, which is everywhere.
func (c *caller) filter(ctx context.Context, pod *corev1.Pod) (took, whole time.Duration, err error) {
	var answer extenderv1.ExtenderFilterResult
	if took, whole, err = c.ask(ctx, c.extender.FilterVerb, pod, &answer); err != nil {
		return 0, 0, err
	}
	if answer.Error != "" || answer.NodeNames == nil || len(*answer.NodeNames) != len(c.nodes) {
		return 0, 0, fmt.Errorf("the verb filter does not pass all nodes, as it should: error %q, %d nodes refused, such as %.300v",
			answer.Error, len(answer.FailedAndUnresolvableNodes), answer.FailedAndUnresolvableNodes)
	}
	return took, whole, nil
}

// prioritize asks where the pod fits best. The extender keeps a place for it for
// some seconds.
func (c *caller) prioritize(ctx context.Context, pod *corev1.Pod) (took, whole time.Duration, err error) {
	var answer extenderv1.HostPriorityList
	if took, whole, err = c.ask(ctx, c.extender.PrioritizeVerb, pod, &answer); err != nil {
		return 0, 0, err
	}
	if len(answer) != len(c.nodes) {
		return 0, 0, fmt.Errorf("the verb prioritize rates %d nodes of %d", len(answer), len(c.nodes))
	}
	return took, whole, nil
}

// like is the pod as the API server and the webhook make it, without being
// created, and as the scheduler keeps it.
func (k *kit) like(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := k.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	made.ManagedFields = nil
	return made, nil
}

// quarter asks for a quarter of a GPU.
func quarter(ns, name string) *corev1.Pod {
	return withCPU(testkit.MakePod(ns, name).Container("main", testkit.Shares("25")).Obj())
}

// latencies are those of many calls, sorted.
type latencies struct {
	durations
	whole durations
}

type durations []time.Duration

// of returns a percentile.
func (d durations) of(percent int) time.Duration { return d[(len(d)-1)*percent/100] }

func (d durations) both() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }
	return fmt.Sprintf("%s (%s) ms", ms(d.of(50)), ms(d.of(99)))
}

func (l latencies) String() string { return l.both() + ", with JSON here " + l.whole.both() }

// measure makes calls, each for a new pod.
func (c *caller) measure(ctx context.Context, call func(context.Context, *corev1.Pod) (took, whole time.Duration, err error)) (latencies, error) {
	const warm = 50 // calls that are not counted
	var l latencies
	for i := range warm + calls {
		pod := *c.pod
		pod.UID = uuid.NewUUID()
		pod.Name = fmt.Sprintf("%s-%d", c.pod.Name, i)
		took, whole, err := call(ctx, &pod)
		if err != nil {
			return l, err
		}
		if i >= warm {
			l.durations, l.whole = append(l.durations, took), append(l.whole, whole)
		}
	}
	slices.Sort(l.durations)
	slices.Sort(l.whole)
	return l, nil
}
