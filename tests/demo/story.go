package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/tests/testkit"
)

func chapter(title string) { fmt.Printf("\n── %s\n\n", title) }

// pod starts a pod of the story, on the story's node.
func (s *story) pod(name string) *testkit.PodBuilder {
	return testkit.MakePod(namespace, name).OnNode(s.node)
}

// clear removes what an earlier demo left. Its queues may stay: they are the
// same again.
func (s *story) clear(ctx context.Context) error {
	if err := s.removeExperiments(ctx); err != nil {
		return err
	}
	return s.removeAll(ctx)
}

// alone returns an error while pods of other namespaces use GPUs of the story's
// node: it would not go as it is told.
func (s *story) alone(ctx context.Context) error {
	st, err := s.state(ctx)
	if err != nil {
		return err
	}
	others := map[string]bool{}
	for _, node := range st.Nodes {
		for _, g := range node.GPUs {
			for _, p := range g.Pods {
				if node.Name == s.node && p.Namespace != namespace {
					others[p.Namespace+"/"+p.Name] = true
				}
			}
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("pods outside namespace %s use GPUs of %s: %s; the story needs that node to itself, so delete them, or run make cluster-down first",
		namespace, s.node, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
}

func (s *story) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := s.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err == nil {
		fmt.Printf("created pod %s: %s\n", pod.Name, asks(pod))
	}
	return err
}

// asks puts a pod's request in the words of its manifest.
func asks(pod *corev1.Pod) string {
	var parts []string
	for _, key := range []string{contract.FractionAnnotation, contract.MemoryAnnotation, contract.CountAnnotation, contract.ModelAnnotation} {
		if v, ok := pod.Annotations[key]; ok {
			parts = append(parts, fmt.Sprintf("%s: %q", key, v))
		}
	}
	for _, c := range pod.Spec.Containers {
		for name, q := range c.Resources.Limits {
			parts = append(parts, fmt.Sprintf("%s: %s", name, q.String()))
		}
	}
	return strings.Join(parts, ", ")
}

// start creates pods and waits until they run.
func (s *story) start(ctx context.Context, pods ...*corev1.Pod) error {
	for _, pod := range pods {
		if err := s.create(ctx, pod); err != nil {
			return err
		}
	}
	for _, pod := range pods {
		if err := s.waitRunning(ctx, pod.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) waitRunning(ctx context.Context, name string) error {
	began := time.Now()
	var last string
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pod, err := s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = fmt.Sprintf("%s %s %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		return pod.Status.Phase == corev1.PodRunning, nil
	})
	if err != nil {
		return fmt.Errorf("pod %s does not run (%s): %w; see kubectl -n %s describe pod %s", name, last, err, namespace, name)
	}
	fmt.Printf("pod %s runs after %.1f s\n", name, time.Since(began).Seconds())
	return nil
}

// showInside prints which GPU each pod's process sees.
func (s *story) showInside(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			log, err := s.client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err != nil {
				return false, nil // the log file appears a moment after the process
			}
			for line := range strings.Lines(string(log)) {
				if strings.HasPrefix(line, contract.VisibleDevicesEnv+"=") {
					fmt.Printf("inside %s: %s", name, line)
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("pod %s printed no %s: %w", name, contract.VisibleDevicesEnv, err)
		}
	}
	return nil
}

// remove deletes a pod and waits until it is gone.
func (s *story) remove(ctx context.Context, name string) error {
	pods := s.client.CoreV1().Pods(namespace)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// kubectl shows what a user would see.
func (s *story) kubectl(ctx context.Context, args ...string) error {
	return s.kubectlWith(ctx, nil, args...)
}

// kubectlWith is that with something to read.
func (s *story) kubectlWith(ctx context.Context, stdin io.Reader, args ...string) error {
	fmt.Println("$ kubectl --namespace", namespace, strings.Join(args, " "))
	cmd := s.command(ctx, args...)
	cmd.Stdin, cmd.Stdout = stdin, os.Stdout
	return cmd.Run()
}

// kubectlQuietly prints errors only.
func (s *story) kubectlQuietly(ctx context.Context, args ...string) error {
	return s.command(ctx, args...).Run()
}

func (s *story) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.kube.Dir(), "bin", "kubectl"),
		append([]string{"--kubeconfig", s.kube.Kubeconfig(), "--namespace", namespace}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// showReason waits for the event that says why the pod waits.
func (s *story) showReason(ctx context.Context, name string) error {
	return s.showEvent(ctx, name, "GPUUnavailable")
}

func (s *story) showEvent(ctx context.Context, name, reason string) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		events, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return false, err
		}
		pod, err := s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, e := range events.Items {
			if e.Reason == reason && e.InvolvedObject.UID == pod.UID {
				fmt.Printf("event on %s: %s: %s\n", name, e.Reason, e.Message)
				return true, nil
			}
		}
		return false, nil
	})
}

// state reads the extender's ledger.
func (s *story) state(ctx context.Context) (st struct {
	Nodes []ledger.NodeDump `json:"nodes"`
}, err error,
) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.kube.ExtenderOpsURL()+"/v1/state", nil)
	if err != nil {
		return st, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(body, &st)
}

// gpuMap prints the GPUs of the story's node and who is on them.
func (s *story) gpuMap(ctx context.Context) error {
	st, err := s.state(ctx)
	if err != nil {
		return err
	}
	w := table.NewWriter()
	w.SetOutputMirror(os.Stdout)
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"node", "GPU", "model", "shares", "", "pods"})
	for _, node := range st.Nodes {
		if node.Name != s.node {
			continue
		}
		for _, g := range node.GPUs {
			var pods []string
			for _, p := range g.Pods {
				pods = append(pods, fmt.Sprintf("%s (%d)", p.Name, p.Shares))
			}
			used := g.Shares.Total - g.Shares.Free
			w.AppendRow(table.Row{node.Name, g.Index, g.Model, fmt.Sprintf("%d/%d", used, g.Shares.Total), bar(int64(used), int64(g.Shares.Total)), strings.Join(pods, ", ")})
		}
	}
	fmt.Println()
	w.Render()
	return nil
}

// bar draws used of total as ten cells.
func bar(used, total int64) string {
	full := int(min(max(used*10/max(total, 1), 0), 10))
	return strings.Repeat("█", full) + strings.Repeat("░", 10-full)
}

// whollyFree counts the GPUs of the story's node that nobody uses.
func (s *story) whollyFree(ctx context.Context) (int, error) {
	st, err := s.state(ctx)
	if err != nil {
		return 0, err
	}
	free := 0
	for _, node := range st.Nodes {
		for _, g := range node.GPUs {
			if node.Name == s.node && g.Shares.Free == g.Shares.Total {
				free++
			}
		}
	}
	return free, nil
}
