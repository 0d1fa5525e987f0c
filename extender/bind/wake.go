package bind

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

type wake struct {
	pod     ledger.Pod
	version uint64
}

// Wake implements planner.Effects.
func (e *Effects) Wake(pod ledger.Pod, version uint64) { e.wakes.Add(wake{pod, version}) }

// mostWakes is how often one wake-up patch is tried; the planner asks again
// after a while.
const mostWakes = 5

// wake makes the scheduler try the pod.
func (e *Effects) wake(ctx context.Context, w wake) error {
	err := e.retry(ctx, e.clients.Main, w.pod, w.version)
	switch {
	case err == nil:
		e.metrics.Retries.WithLabelValues("ok").Inc()
		return nil
	case e.gone(ctx, w.pod, err):
		e.metrics.Retries.WithLabelValues("gone").Inc()
		return nil
	case e.wakes.NumRequeues(w) >= mostWakes:
		e.metrics.Retries.WithLabelValues("failed").Inc()
		klog.FromContext(ctx).Error(err, "Waiting pod could not be patched", "pod", klog.KRef(w.pod.Namespace, w.pod.Name))
		return nil
	default:
		return err
	}
}

// retry changes an annotation of the pod, which makes the scheduler try it.
func (e *Effects) retry(ctx context.Context, client kubernetes.Interface, pod ledger.Pod, version uint64) error {
	value := fmt.Sprintf("%d-%s", version, e.opts.Run)
	return patch(ctx, client, pod, types.MergePatchType, map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{contract.RetryAnnotation: value}},
	})
}

// patch patches the pod, but not another one of its name: the change gets the
// UID, which cannot be changed.
func patch(ctx context.Context, client kubernetes.Interface, pod ledger.Pod, kind types.PatchType, change map[string]any, subresources ...string) error {
	metadata, ok := change["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		change["metadata"] = metadata
	}
	metadata["uid"] = pod.UID
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, kind, body, metav1.PatchOptions{}, subresources...)
	return err
}
