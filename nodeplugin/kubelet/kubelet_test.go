package kubelet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/ktesting"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tranche-dev/tranche/nodeplugin/assign"
	"github.com/tranche-dev/tranche/nodeplugin/kubelet"
	"github.com/tranche-dev/tranche/nodeplugin/ledger"
	"github.com/tranche-dev/tranche/pkg/contract"
)

func TestAPodThatLeftTheListLingersWhileItsFolderIsThere(t *testing.T) {
	root := t.TempDir()
	c := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	tr := kubelet.NewTracker(root, c)
	pod := &ledger.Pod{UID: "u", GraceSeconds: 30}
	if tr.Lingers(pod, true) {
		t.Error("lingers without a folder")
	}
	folder := filepath.Join(root, "pods", "u")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if !tr.Lingers(pod, true) {
		t.Error("does not linger although its folder is there")
	}
	c.SetTime(time.Unix(60, 0))
	if !tr.Lingers(pod, true) {
		t.Error("gone before its grace period and a minute are over")
	}
	c.SetTime(time.Unix(91, 0))
	if tr.Lingers(pod, true) {
		t.Error("a folder that cannot be removed keeps the GPU for ever")
	}
}

func TestAListOfTheAPIServerMayBeBehind(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	tr := kubelet.NewTracker(t.TempDir(), c)
	pod := &ledger.Pod{UID: "u"}
	if !tr.Lingers(pod, false) {
		t.Error("gone at once")
	}
	c.SetTime(time.Unix(6, 0))
	if tr.Lingers(pod, false) {
		t.Error("lingers without a folder")
	}
}

// offers answers with the devices of a resource.
type offers struct {
	ids []string
	err error
}

func (o offers) Offered(context.Context, string) ([]string, error) { return o.ids, o.err }

func TestCheckForeignTellsOurDevicesFromOthers(t *testing.T) {
	cases := map[string]struct {
		ids  []string
		want string
	}{
		"nothing":                      {nil, ""},
		"ours":                         {[]string{"GPU-a::0", "GPU-b::0"}, ""},
		"NVIDIA's":                     {[]string{"GPU-a", "GPU-b"}, "its devices: GPU-a, GPU-b"},
		"NVIDIA's, time-sliced":        {[]string{"GPU-a::0", "GPU-a::1"}, "its devices: GPU-a::1"},
		"of a GPU that was never ours": {[]string{"GPU-x::0"}, "its devices: GPU-x::0"},
		"many":                         {[]string{"1", "2", "3", "4"}, "its devices: 1, 2, 3)"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := kubelet.CheckForeign(t.Context(), offers{ids: tc.ids}, "nvidia.com/gpu", func(g contract.GPUUUID) bool { return g == "GPU-a" || g == "GPU-b" })
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("CheckForeign = %v; want %q", err, tc.want)
			}
		})
	}
	down := errors.New("kubelet is down")
	var foreign *kubelet.ForeignError
	if err := kubelet.CheckForeign(t.Context(), offers{err: down}, "r", nil); !errors.Is(err, down) || errors.As(err, &foreign) {
		t.Errorf("a kubelet that is down: %v", err)
	}
}

// source answers with a list or an error.
type source struct {
	list assign.PodList
	err  error
}

func (s source) Pods(context.Context) (assign.PodList, error) { return s.list, s.err }

func TestTheAPIServerIsAskedOnlyIfTheKubeletHasNoAnswer(t *testing.T) {
	fromKubelet := source{list: assign.PodList{FromKubelet: true}}
	fromServer := source{list: assign.PodList{Pods: []*corev1.Pod{{}}}}
	ask := func(k, s source) (assign.PodList, error) {
		return kubelet.NewEither(k, s, kubelet.NewMetrics(prometheus.NewRegistry())).Pods(t.Context())
	}
	if got, err := ask(fromKubelet, fromServer); err != nil || !got.FromKubelet {
		t.Errorf("%+v %v", got, err)
	}
	for _, code := range []codes.Code{codes.Unavailable, codes.Unimplemented, codes.FailedPrecondition, codes.DeadlineExceeded} {
		if got, err := ask(source{err: status.Error(code, "no")}, fromServer); err != nil || len(got.Pods) != 1 {
			t.Errorf("%s: %+v %v", code, got, err)
		}
	}
	if _, err := ask(source{err: status.Error(codes.ResourceExhausted, "too many")}, fromServer); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an answer that is no: %v", err)
	}
	if _, err := ask(source{err: status.Error(codes.Unavailable, "kubelet away")}, source{err: errors.New("server away")}); err == nil ||
		!strings.Contains(err.Error(), "kubelet away") || !strings.Contains(err.Error(), "server away") {
		t.Errorf("both away: %v", err)
	}
}

// decider panics, or refuses.
type decider struct{ refusal *assign.Refusal }

func (d decider) Preferred(context.Context, string, []string, []string, int) []string {
	panic("defect")
}

func (d decider) Allocate(context.Context, string, []string) ([]string, *assign.Refusal) {
	if d.refusal == nil {
		panic("defect")
	}
	return nil, d.refusal
}

func TestADefectIsAnsweredNotFatal(t *testing.T) {
	reg := prometheus.NewRegistry()
	log, _ := ktesting.NewTestContext(t)
	s := kubelet.NewServer("r", decider{}, log, clock.RealClock{}, kubelet.NewMetrics(reg))
	answer, err := s.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AllocationSize: 1}}})
	if err != nil || len(answer.GetContainerResponses()) != 1 || len(answer.GetContainerResponses()[0].GetDeviceIDs()) != 0 {
		t.Errorf("GetPreferredAllocation: %v %v", answer, err)
	}
	if _, err := s.Allocate(t.Context(), allocate()); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "defect") {
		t.Errorf("Allocate: %v", err)
	}
}

func allocate() *pluginapi.AllocateRequest {
	return &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"x"}}}}
}

func TestARefusalIsTheTextOfTheError(t *testing.T) {
	log, _ := ktesting.NewTestContext(t)
	s := kubelet.NewServer("r", decider{&assign.Refusal{Message: "because"}}, log, clock.RealClock{}, kubelet.NewMetrics(prometheus.NewRegistry()))
	if _, err := s.Allocate(t.Context(), allocate()); status.Convert(err).Message() != "because" || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Allocate: %v", err)
	}
}
