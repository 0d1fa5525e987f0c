package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

func TestMetricsAreWellNamed(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	m.Answered("filter", "ok", -time.Second)
	m.Answered("state", "ok", time.Second)
	m.BindFailures.WithLabelValues("conflict").Inc()
	m.HoldReleases.WithLabelValues("expired").Inc()
	m.Retries.WithLabelValues("ok").Inc()
	m.Waiting.WithLabelValues("Invalid").Set(1)
	m.Nominations.WithLabelValues("ok").Inc()
	m.Admissions.WithLabelValues("ok").Inc()
	m.AdmissionDuration.Observe(1)
	m.PlanDuration.Observe(1)
	m.Evictions.WithLabelValues("BelowMinCount", "ok").Inc()
	m.Gangs.WithLabelValues("Held").Set(1)
	m.GangWrites.WithLabelValues("create", "ok").Inc()
	m.QueueWrites.WithLabelValues("patch_status", "ok").Inc()
	m.Reclaims.WithLabelValues("a").Inc()
	registry.MustRegister(NewQueueCollector(func() []Queue { return []Queue{{Name: "a", Limit: 100}} }))
	registry.MustRegister(NewLedgerCollector(func() *ledger.Snapshot { return ledger.New().Snapshot() }))
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("problems %v, %v", problems, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "tranche_extender_") {
			t.Errorf("metric %s has another prefix", f.GetName())
		}
	}
}

func TestQueueGauges(t *testing.T) {
	queues := func() []Queue {
		return []Queue{
			{Name: "a", Allocated: 1, Held: 2, Demand: 3, Deserved: 4, FairShare: 5, Limit: 6, Pending: 7},
			{Name: "b", Limit: -1},
		}
	}
	want := `
# HELP tranche_extender_queue_pending_gangs Gangs that wait, single pods included, by queue, all below it included.
# TYPE tranche_extender_queue_pending_gangs gauge
tranche_extender_queue_pending_gangs{queue="a"} 7
tranche_extender_queue_pending_gangs{queue="b"} 0
# HELP tranche_extender_queue_gpu_shares Shares of GPUs by queue, all below it included, and kind: allocated, held, demand, deserved, fair_share, or limit, which is absent where there is none.
# TYPE tranche_extender_queue_gpu_shares gauge
tranche_extender_queue_gpu_shares{kind="allocated",queue="a"} 1
tranche_extender_queue_gpu_shares{kind="allocated",queue="b"} 0
tranche_extender_queue_gpu_shares{kind="demand",queue="a"} 3
tranche_extender_queue_gpu_shares{kind="demand",queue="b"} 0
tranche_extender_queue_gpu_shares{kind="deserved",queue="a"} 4
tranche_extender_queue_gpu_shares{kind="deserved",queue="b"} 0
tranche_extender_queue_gpu_shares{kind="fair_share",queue="a"} 5
tranche_extender_queue_gpu_shares{kind="fair_share",queue="b"} 0
tranche_extender_queue_gpu_shares{kind="held",queue="a"} 2
tranche_extender_queue_gpu_shares{kind="held",queue="b"} 0
tranche_extender_queue_gpu_shares{kind="limit",queue="a"} 6
`
	if err := testutil.CollectAndCompare(NewQueueCollector(queues), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestLedgerGauges(t *testing.T) {
	l := ledger.New()
	inv := fixture.Inventory("a", 3)
	inv.GPUs[2].Healthy = false
	l.SetNode("a", inv)
	claim := func(name string, gpu int, s units.Shares) ledger.Claim {
		return ledger.Claim{
			Pod: ledger.Pod{UID: "uid-x", Name: name}, Node: "a",
			Charges: map[contract.GPUUUID]units.Shares{fixture.GPU("a", gpu): s},
		}
	}
	allocated, held := claim("p", 0, 130), claim("q", 1, 30)
	held.Pod.UID = "uid-y"
	l.Allocate(allocated)
	if refusal := l.Hold(held, time.Unix(1, 0)); refusal != "" {
		t.Fatal(refusal)
	}
	want := `
# HELP tranche_extender_gpu_shares Shares of all GPUs by model and state: allocated, held, free (of healthy GPUs) or unusable (what is left of unhealthy ones).
# TYPE tranche_extender_gpu_shares gauge
tranche_extender_gpu_shares{model="NVIDIA-A100-SXM4-80GB",state="allocated"} 130
tranche_extender_gpu_shares{model="NVIDIA-A100-SXM4-80GB",state="free"} 40
tranche_extender_gpu_shares{model="NVIDIA-A100-SXM4-80GB",state="held"} 30
tranche_extender_gpu_shares{model="NVIDIA-A100-SXM4-80GB",state="unusable"} 100
# HELP tranche_extender_gpus GPUs by model and health.
# TYPE tranche_extender_gpus gauge
tranche_extender_gpus{health="healthy",model="NVIDIA-A100-SXM4-80GB"} 2
tranche_extender_gpus{health="unhealthy",model="NVIDIA-A100-SXM4-80GB"} 1
# HELP tranche_extender_holds Pods that hold shares and are not bound yet.
# TYPE tranche_extender_holds gauge
tranche_extender_holds 1
# HELP tranche_extender_nodes Nodes with a GPU inventory.
# TYPE tranche_extender_nodes gauge
tranche_extender_nodes 1
# HELP tranche_extender_overcommitted_gpus GPUs that are charged beyond their shares; must be 0.
# TYPE tranche_extender_overcommitted_gpus gauge
tranche_extender_overcommitted_gpus 1
`
	if err := testutil.CollectAndCompare(NewLedgerCollector(l.Snapshot), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
