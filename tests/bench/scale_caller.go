package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// call is one call and how long it lasted.
type call struct {
	body, answer []byte
	// took is the time from the request to the whole of the answer, whole that with
	// JSON on this side.
	took, whole time.Duration
}

// post sends a body and reads the whole answer.
func (c *caller) post(ctx context.Context, url string, body []byte) (answer []byte, took time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	began := time.Now()
	response, err := c.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	took = time.Since(began)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", url, response.Status, answer)
	}
	return answer, took, err
}

// ask makes one call.
func (c *caller) ask(ctx context.Context, verb string, pod *corev1.Pod, answer any) (call, error) {
	began := time.Now()
	body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod, NodeNames: &c.nodes})
	if err != nil {
		return call{}, err
	}
	text, took, err := c.post(ctx, strings.TrimRight(c.extender.URLPrefix, "/")+"/"+verb, body)
	if err != nil {
		return call{}, err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return call{}, fmt.Errorf("%s: %w", verb, err)
	}
	return call{body, text, took, time.Since(began)}, nil
}

// filter asks where the pod fits, which is everywhere.
func (c *caller) filter(ctx context.Context, pod *corev1.Pod) (call, error) {
	var answer extenderv1.ExtenderFilterResult
	made, err := c.ask(ctx, c.extender.FilterVerb, pod, &answer)
	if err != nil {
		return made, err
	}
	if answer.Error != "" || answer.NodeNames == nil || len(*answer.NodeNames) != len(c.nodes) {
		return made, fmt.Errorf("the verb filter does not pass all nodes, as it should: error %q, %d nodes refused, such as %.300v",
			answer.Error, len(answer.FailedAndUnresolvableNodes), answer.FailedAndUnresolvableNodes)
	}
	return made, nil
}

// prioritize asks where the pod fits best. The extender keeps a place for it for
// some seconds.
func (c *caller) prioritize(ctx context.Context, pod *corev1.Pod) (call, error) {
	var answer extenderv1.HostPriorityList
	made, err := c.ask(ctx, c.extender.PrioritizeVerb, pod, &answer)
	if err == nil && len(answer) != len(c.nodes) {
		err = fmt.Errorf("the verb prioritize rates %d nodes of %d", len(answer), len(c.nodes))
	}
	return made, err
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
	// whole are those with JSON on this side, echoes those of as many calls of a
	// server that reads as much and answers as much, and does nothing: one of each
	// after the other, so that a slow moment of the machine meets both.
	whole, echoes durations
}

type durations []time.Duration

// of returns a percentile.
func (d durations) of(percent int) time.Duration { return d[(len(d)-1)*percent/100] }

func (d durations) both() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }
	return fmt.Sprintf("%s (%s) ms", ms(d.of(50)), ms(d.of(99)))
}

func (l latencies) String() string {
	return fmt.Sprintf("%s, with JSON here %s, an echo %s", l.both(), l.whole.both(), l.echoes.both())
}

// warm is how many calls are made first that are not counted.
const warm = 50

// measure makes calls, each for a new pod.
func (c *caller) measure(ctx context.Context, verb func(context.Context, *corev1.Pod) (call, error)) (l latencies, err error) {
	echo, url, stop, err := startEcho(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for i := range warm + calls {
		pod := *c.pod
		pod.UID = uuid.NewUUID()
		pod.Name = fmt.Sprintf("%s-%d", c.pod.Name, i)
		made, err := verb(ctx, &pod)
		if err != nil {
			return l, err
		}
		_, echoed, err := echo.post(ctx, fmt.Sprintf("%s/%d", url, len(made.answer)), made.body)
		if err != nil {
			return l, err
		}
		if i >= warm {
			l.durations, l.whole, l.echoes = append(l.durations, made.took), append(l.whole, made.whole), append(l.echoes, echoed)
		}
	}
	for _, d := range []durations{l.durations, l.whole, l.echoes} {
		slices.Sort(d)
	}
	return l, nil
}
