package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
	"github.com/tranche-dev/tranche/pkg/units"
)

// start is when the tests' clock begins.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type charges = map[contract.GPUUUID]units.Shares

// inventory is a node with healthy GPUs of 100 shares.
func inventory(gpus ...contract.GPUUUID) contract.Inventory {
	inv := contract.Inventory{Version: 1, SharesPerGPU: 100}
	for i, uuid := range gpus {
		inv.GPUs = append(inv.GPUs, contract.GPU{
			UUID: uuid, Index: i, Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920, Driver: "580.1", Healthy: true, NUMA: -1,
			Isolation: contract.IsolationNone,
		})
	}
	return inv
}

func pod(uid string) ledger.Pod {
	return ledger.Pod{UID: types.UID(uid), Namespace: "demo", Name: "pod-" + uid}
}

func claim(uid, node string, c charges) ledger.Claim {
	plan := contract.Plan{Version: 1, Node: node, Containers: map[string][]contract.Grant{}}
	for gpu, s := range c {
		plan.Containers["main"] = append(plan.Containers["main"], contract.Grant{GPU: gpu, Shares: s})
	}
	return ledger.Claim{Pod: pod(uid), Node: node, Charges: c, Plan: plan}
}

// mustHold holds until a minute after start.
func mustHold(t *testing.T, l *ledger.Ledger, c ledger.Claim) {
	t.Helper()
	if refusal := l.Hold(c, start.Add(time.Minute)); refusal != "" {
		t.Fatalf("Hold(%s on %s %v) refused: %s", c.Pod.UID, c.Node, c.Charges, refusal)
	}
}

// shares are total, allocated, held and free of every GPU, "node/uuid".
func shares(l *ledger.Ledger) map[string]ledger.SharesDump {
	all := map[string]ledger.SharesDump{}
	for _, n := range l.Snapshot().Dump().Nodes {
		for _, g := range n.GPUs {
			all[fmt.Sprintf("%s/%s", n.Name, g.UUID)] = g.Shares
		}
	}
	return all
}

func wantShares(t *testing.T, l *ledger.Ledger, want map[string]ledger.SharesDump) {
	t.Helper()
	if diff := cmp.Diff(want, shares(l)); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}
