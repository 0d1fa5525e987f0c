package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	. "github.com/tranche-dev/tranche/tests/testkit"
)

const forgedPlan = `{"v":1,"node":"tranche-real-0","containers":{"main":[{"gpu":"GPU-0","shares":1,"memoryMiB":1}]}}`

func TestBadRequestsAreRefusedWithASentenceThatHelps(t *testing.T) {
	ns := optedIn(t)
	cases := map[string]struct {
		pod *PodBuilder
		// want is the part of the sentence that says what to write.
		want string
	}{
		"0 shares":                {MakePod(ns, "p").Container("main", Shares("0")), "write at least 1"},
		"101 shares":              {MakePod(ns, "p").Container("main", Shares("101")), "write at most 100"},
		"-1 shares":               {MakePod(ns, "p").Container("main", Shares("-1")), "write at least 1"},
		"1.5 shares":              {MakePod(ns, "p").Container("main", Shares("1.5")), "write a whole number"},
		"fraction abc":            {MakePod(ns, "p").Fraction("abc"), "write a decimal above 0 and at most 1"},
		"fraction 0":              {MakePod(ns, "p").Fraction("0"), "write a decimal above 0"},
		"fraction 1.5":            {MakePod(ns, "p").Fraction("1.5"), "tranche.dev/gpu-count"},
		"fraction -1":             {MakePod(ns, "p").Fraction("-1"), "write a decimal above 0"},
		"memory abc":              {MakePod(ns, "p").Memory("abc"), `such as "20Gi"`},
		"memory, no unit":         {MakePod(ns, "p").Memory("20"), "did you leave out the unit?"},
		"memory, too large":       {MakePod(ns, "p").Memory("500Gi"), "NVIDIA-A100-SXM4-80GB, has 80Gi; write at most that"},
		"memory, absurd exponent": {MakePod(ns, "p").Memory("1e999999999"), `such as "20Gi"`},
		"count 0":                 {MakePod(ns, "p").Fraction("0.5").Count("0"), "write the number of GPUs"},
		"both resources":          {MakePod(ns, "p").Container("main", Shares("50"), GPUs("1")), "not both"},
		"forged plan":             {MakePod(ns, "p").Container("main", Shares("50")).Annotation(contract.PlanAnnotation, forgedPlan), "remove"},
		"all GPUs by env":         {MakePod(ns, "p").Container("main", Shares("50"), Env("NVIDIA_VISIBLE_DEVICES", "all")), "remove"},
		"all GPUs, no request": {
			MakePod(ns, "p").Container("main", Env("NVIDIA_VISIBLE_DEVICES", "all")), "remove",
		},
		"node by hand": {
			MakePod(ns, "p").Container("main", Shares("50")).Spec(func(s *corev1.PodSpec) { s.NodeName = realNode }), "nodeSelector",
		},
		"unknown container": {MakePod(ns, "p").Fraction("0.5").Annotation(contract.ContainerAnnotation, "nobody"), "name one of its containers: main"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := refused(t, tc.pod.Obj()); !strings.Contains(got, tc.want) {
				t.Errorf("refusal %q does not say %q", got, tc.want)
			}
		})
	}
}

func TestSharesThatAreNoNumberAreRefusedByTheAPIServer(t *testing.T) {
	ns := optedIn(t)
	pod := MakePod(ns, "abc").Container("main", Shares("1")).Obj()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Replace(string(text), `"nvidia.com/gpu-share":"1"`, `"nvidia.com/gpu-share":"abc"`, 1)
	err = client.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Body([]byte(body)).
		SetHeader("Content-Type", "application/json").Do(t.Context()).Error()
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "quantities must match") {
		t.Errorf("got %v", err)
	}
}

// TestAbsurdNumbersFromElsewhereDoNotStopAnybody has a pod of a namespace where
// the webhook does not look reach the extender with a number of a thousand
// million digits.
func TestAbsurdNumbersFromElsewhereDoNotStopAnybody(t *testing.T) {
	absurd := create(t, MakePod(namespace(t, nil), "absurd").OnNode(realNode).Memory("1e999999999").Container("main", Shares("10")).Obj())
	waitEvent(t, absurd, "InvalidGPURequest", `such as "20Gi"`)
	waitRunning(t, create(t, MakePod(optedIn(t), "next").OnNode(realNode).Container("main", Shares("10")).Obj()))
}

func TestImpossiblePodsPendWithAConstantReason(t *testing.T) {
	ns := optedIn(t)
	noModel := create(t, MakePod(ns, "no-model").Fraction("0.5").Annotation(contract.ModelAnnotation, "NVIDIA-X9000").Obj())
	tooMany := create(t, MakePod(ns, "too-many").OnNode(realNode).Fraction("0.5").Count("5").Obj())
	waitEvent(t, noModel, "GPUUnavailable", "model")
	waitEvent(t, tooMany, "GPUUnavailable", "")
	for _, pod := range []*corev1.Pod{noModel, tooMany} {
		eventually(t, pod.Name+" is not scheduled, with a reason", func(ctx context.Context) error {
			got, err := client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range got.Status.Conditions {
				// While others wait in their queue, pods wait at its gate.
				waits := c.Reason == corev1.PodReasonUnschedulable || c.Reason == corev1.PodReasonSchedulingGated
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && waits && c.Message != "" {
					return nil
				}
			}
			return fmt.Errorf("conditions %s", conditions(got))
		})
		events, err := podEvents(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		ours := map[string]bool{}
		for _, e := range events {
			if e.Reason == "GPUUnavailable" {
				ours[e.Message] = true
				if strings.ContainsAny(e.Message, "0123456789") {
					t.Errorf("event of %s is not constant: %q", pod.Name, e.Message)
				}
			}
		}
		if len(ours) != 1 {
			t.Errorf("pod %s has the sentences %v, want one", pod.Name, ours)
		}
	}
}

func TestOrdinaryUsersCannotTouchPlansOrInventories(t *testing.T) {
	ns := optedIn(t)
	pod := waitRunning(t, create(t, MakePod(ns, "victim").OnNode(realNode).Container("main", Shares("50")).Obj()))
	// A user who may do anything that RBAC can grant.
	user, err := kube.ClientAs("mallory", "system:masters", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	patch := func(key, value string) []byte {
		return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, value)
	}
	quoted, err := json.Marshal(forgedPlan)
	if err != nil {
		t.Fatal(err)
	}
	pods, nodes := user.CoreV1().Pods(ns), user.CoreV1().Nodes()
	attempts := map[string]func(ctx context.Context) error{
		"change the plan": func(ctx context.Context) error {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(contract.PlanAnnotation, string(quoted)), metav1.PatchOptions{})
			return err
		},
		"remove the plan": func(ctx context.Context) error {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(contract.PlanAnnotation, "null"), metav1.PatchOptions{})
			return err
		},
		"change the plan through status": func(ctx context.Context) error {
			got, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(contract.PlanAnnotation, string(quoted)), metav1.PatchOptions{}, "status")
			if err == nil && got.Annotations[contract.PlanAnnotation] == pod.Annotations[contract.PlanAnnotation] {
				return errUnchanged
			}
			return err
		},
		"change the request": func(ctx context.Context) error {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(contract.FractionAnnotation, `"0.1"`), metav1.PatchOptions{})
			return err
		},
		"change the request through status": func(ctx context.Context) error {
			_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch(contract.ModelAnnotation, `"any"`), metav1.PatchOptions{}, "status")
			return err
		},
		"create a pod with a plan where the webhook does not look": func(ctx context.Context) error {
			_, err := user.CoreV1().Pods("default").Create(ctx, MakePod("default", "forged").
				Container("main", Shares("50")).Annotation(contract.PlanAnnotation, forgedPlan).Obj(), metav1.CreateOptions{})
			return err
		},
		"bind with a plan": func(ctx context.Context) error {
			waiting := create(t, MakePod(ns, "waiting").Spec(func(s *corev1.PodSpec) { s.SchedulerName = "nobody" }).Container("main", Shares("50")).Obj())
			return pods.Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: waiting.Name, Namespace: ns, Annotations: map[string]string{contract.PlanAnnotation: forgedPlan}},
				Target:     corev1.ObjectReference{Kind: "Node", Name: realNode},
			}, metav1.CreateOptions{})
		},
		"change a node's inventory": func(ctx context.Context) error {
			_, err := nodes.Patch(ctx, realNode, types.MergePatchType, patch(contract.InventoryAnnotation, `"{}"`), metav1.PatchOptions{})
			return err
		},
		"remove a node's inventory": func(ctx context.Context) error {
			_, err := nodes.Patch(ctx, realNode, types.MergePatchType, patch(contract.InventoryAnnotation, "null"), metav1.PatchOptions{})
			return err
		},
	}
	for name, try := range attempts {
		t.Run(name, func(t *testing.T) {
			err := try(t.Context())
			switch {
			case err == nil:
				t.Error("it was allowed")
			case !errors.Is(err, errUnchanged) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err):
				t.Errorf("it failed otherwise: %v", err)
			}
		})
	}
	t.Run("a label may still be set", func(t *testing.T) {
		if _, err := pods.Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := nodes.Patch(t.Context(), realNode, types.MergePatchType, []byte(`{"metadata":{"labels":{"e2e":"b"}}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "all three views agree", checkTruth)
}

// errUnchanged says that the server ignored the change, which is as good as a
// refusal.
var errUnchanged = fmt.Errorf("the server ignored it")
