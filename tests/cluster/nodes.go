package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// forgetRealNode removes the Node object of a real node that is no longer
// wanted; removeRealNode has ended its programs.
func (c *Cluster) forgetRealNode(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Get(ctx, RealNodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", RealNodeName, err)
	}
	return c.removeNodes(ctx, []string{RealNodeName})
}

// removeNodes takes the pods away first: without a node nothing but the garbage
// collection would, minutes later.
func (c *Cluster) removeNodes(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("pods of nodes to remove: %w", err)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	err = inParallel(ctx, pods.Items, func(ctx context.Context, p corev1.Pod) error {
		if !slices.Contains(names, p.Spec.NodeName) {
			return nil
		}
		if err := client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, now); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s/%s of node %s: %w", p.Namespace, p.Name, p.Spec.NodeName, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inParallel(ctx, names, func(ctx context.Context, name string) error {
		if err := client.CoreV1().Nodes().Delete(ctx, name, now); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove node %s: %w", name, err)
		}
		return nil
	})
}

// waitNodesReady waits until every node is ready and free of start-up taints.
// Nodes that others have made do not count.
func (c *Cluster) waitNodesReady(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	nodes, err := simNodes(c.options)
	if err != nil {
		return err
	}
	var want []string
	for _, n := range nodes {
		want = append(want, n.name)
	}
	if c.options.RealNode {
		want = append(want, RealNodeName)
	}
	// A simulated node needs some milliseconds, the real one some seconds; and a
	// list of thousands keeps a processor busy that they need as well.
	patience := readyPatience + time.Duration(len(want))*50*time.Millisecond
	interval := 2*eagerly + time.Duration(len(want))*time.Millisecond
	err = eventually(ctx, patience, interval, func(ctx context.Context) error {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		have := make(map[string]*corev1.Node, len(list.Items))
		for i := range list.Items {
			have[list.Items[i].Name] = &list.Items[i]
		}
		var waiting []string
		for _, name := range want {
			if reason := c.notReady(have[name]); reason != "" {
				waiting = append(waiting, name+": "+reason)
			}
		}
		if len(waiting) > 0 {
			return fmt.Errorf("%d nodes are not ready: %s", len(waiting), strings.Join(waiting[:min(len(waiting), 3)], "; "))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	return nil
}

// notReady says what a node waits for, "" if nothing.
func (c *Cluster) notReady(n *corev1.Node) string {
	if n == nil {
		return "it is not registered yet"
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return "it has the taint " + t.Key
		}
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return "it has not reported its status yet"
	}
	if n.Status.Conditions[i].Status != corev1.ConditionTrue {
		return n.Status.Conditions[i].Message
	}
	if n.Name != RealNodeName || len(c.options.RealGPUs) == 0 {
		return ""
	}
	if _, ok := n.Status.Allocatable[contract.DefaultResources().Share]; !ok {
		return "its kubelet does not offer GPU shares yet"
	}
	if n.Annotations[contract.InventoryAnnotation] == "" {
		return "it has no inventory of its GPUs yet"
	}
	return ""
}
