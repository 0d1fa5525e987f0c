package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

func TestHoldRefusesWhatCannotBe(t *testing.T) {
	inv := inventory("A", "B", "C")
	inv.GPUs[1].Healthy = false
	cases := map[string]struct {
		claim ledger.Claim
		want  ledger.Refusal
	}{
		"the rest of a GPU":               {claim: claim("new", "n", charges{"A": 60}), want: ""},
		"a share more than the rest":      {claim: claim("new", "n", charges{"A": 61}), want: ledger.GPUFull},
		"one of two GPUs full":            {claim: claim("new", "n", charges{"A": 61, "C": 1}), want: ledger.GPUFull},
		"more than a GPU has":             {claim: claim("new", "n", charges{"C": 101}), want: ledger.GPUFull},
		"an unhealthy GPU":                {claim: claim("new", "n", charges{"B": 1}), want: ledger.GPUUnhealthy},
		"a GPU that the node has not":     {claim: claim("new", "n", charges{"Z": 1}), want: ledger.GPUUnknown},
		"a node without inventory":        {claim: claim("new", "other", charges{"A": 1}), want: ledger.NodeUnknown},
		"a node of which charges are all": {claim: claim("new", "bare", charges{"X": 1}), want: ledger.NodeUnknown},
		"a pod that is bound":             {claim: claim("bound", "n", charges{"C": 1}), want: ledger.PodAllocated},
		"no GPU":                          {claim: claim("new", "n", nil), want: ""},
		"no GPU, no inventory either":     {claim: claim("new", "other", nil), want: ""},
		"no GPU and no node":              {claim: claim("new", "", nil), want: ledger.ClaimInvalid},
		"no GPU, but bound":               {claim: claim("bound", "n", nil), want: ledger.PodAllocated},
		"a charge of nothing":             {claim: claim("new", "n", charges{"C": 0}), want: ledger.ClaimInvalid},
		"a negative charge":               {claim: claim("new", "n", charges{"A": 5, "C": -1}), want: ledger.ClaimInvalid},
		"no UID":                          {claim: claim("", "n", charges{"C": 1}), want: ledger.ClaimInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			l.SetNode("n", inv)
			l.Allocate(claim("bound", "n", charges{"A": 30}))
			l.Allocate(claim("elsewhere", "bare", charges{"X": 10}))
			mustHold(t, l, claim("held", "n", charges{"A": 10}))
			before, version := l.Snapshot().Dump(), l.Version()
			if got := l.Hold(tc.claim, start.Add(time.Minute)); got != tc.want {
				t.Fatalf("Hold = %q, want %q", got, tc.want)
			}
			if tc.want == "" {
				return
			}
			if diff := cmp.Diff(before, l.Snapshot().Dump()); diff != "" || l.Version() != version {
				t.Errorf("a refused hold changed the ledger (-before +after):\n%s", diff)
			}
		})
	}
}

func TestHoldOverwritesByUID(t *testing.T) {
	l := ledger.New()
	l.SetNode("m", inventory("A", "B"))
	l.SetNode("n", inventory("C"))
	mustHold(t, l, claim("a", "m", charges{"A": 70}))
	mustHold(t, l, claim("a", "m", charges{"A": 80})) // its own 70 do not count
	wantShares(t, l, map[string]ledger.SharesDump{
		"m/A": {Total: 100, Held: 80, Free: 20}, "m/B": {Total: 100, Free: 100}, "n/C": {Total: 100, Free: 100},
	})
	mustHold(t, l, claim("a", "n", charges{"C": 10}))
	wantShares(t, l, map[string]ledger.SharesDump{
		"m/A": {Total: 100, Free: 100}, "m/B": {Total: 100, Free: 100}, "n/C": {Total: 100, Held: 10, Free: 90},
	})
	if got := l.Hold(claim("a", "m", charges{"A": 101}), start.Add(time.Minute)); got != ledger.GPUFull {
		t.Fatalf("Hold = %q, want %q", got, ledger.GPUFull)
	}
	if r, ok := l.Get("a"); !ok || r.Node != "n" || r.On("C") != 10 {
		t.Errorf("after a refused hold the earlier one is %+v, want 10 shares of C on n", r)
	}
}

func TestHoldsExpireAndAllocationsDoNot(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	for uid, after := range map[string]time.Duration{"third": 3, "first": 1, "second": 2, "also-first": 1, "committed": 1} {
		if refusal := l.Hold(claim(uid, "n", charges{"A": 10}), start.Add(after*time.Second)); refusal != "" {
			t.Fatal(refusal)
		}
	}
	l.Commit("committed")
	if next, ok := l.NextExpiry(); !ok || !next.Equal(start.Add(time.Second)) {
		t.Errorf("NextExpiry = %v, %v; want one second after the start", next, ok)
	}
	if got := l.Expire(start.Add(time.Second - 1)); len(got) != 0 {
		t.Errorf("Expire before the time released %v", uids(got))
	}
	want := []types.UID{"also-first", "first", "second"}
	if diff := cmp.Diff(want, uids(l.Expire(start.Add(2*time.Second)))); diff != "" {
		t.Errorf("Expire (-want +got):\n%s", diff)
	}
	wantShares(t, l, map[string]ledger.SharesDump{"n/A": {Total: 100, Allocated: 10, Held: 10, Free: 80}})
	mustHold(t, l, claim("third", "n", charges{"A": 10})) // prolonged to a minute
	if got := l.Expire(start.Add(59 * time.Second)); len(got) != 0 {
		t.Errorf("Expire released %v, which was prolonged", uids(got))
	}
	if got := l.Expire(start.Add(time.Minute)); len(got) != 1 {
		t.Errorf("Expire at the very time released %v, want one", uids(got))
	}
	if _, ok := l.NextExpiry(); ok {
		t.Error("NextExpiry says true without holds")
	}
}

func uids(records []*ledger.Record) []types.UID {
	var all []types.UID
	for _, r := range records {
		all = append(all, r.Pod.UID)
	}
	return all
}

func TestCommitKeepsThePlanUntilAllocateConfirms(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	c := claim("a", "n", charges{"A": 40})
	if _, ok := l.Commit("a"); ok {
		t.Error("Commit of a pod without a hold says true")
	}
	mustHold(t, l, c)
	r, ok := l.Commit("a")
	if !ok || r.State != ledger.Allocated || !r.Expires.IsZero() {
		t.Fatalf("Commit = %+v, %v", r, ok)
	}
	if diff := cmp.Diff(c.Plan, r.Plan); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if _, ok := l.Commit("a"); ok {
		t.Error("a second Commit says true")
	}
	if got := l.Expire(start.Add(time.Hour)); len(got) != 0 {
		t.Errorf("a committed claim expired: %v", uids(got))
	}
	snapshot, version := l.Snapshot(), l.Version()
	if l.Allocate(c) {
		t.Error("Allocate of what was committed says that it changed something")
	}
	if l.Version() != version || l.Snapshot() != snapshot {
		t.Error("a confirmation moved the version")
	}
	if r, _ := l.Get("a"); len(r.Plan.Containers) != 0 {
		t.Error("the plan is still kept after the confirmation")
	}
	if l.Rollback("a", start) {
		t.Error("Rollback undid a confirmed allocation")
	}
}

func TestRollbackMakesACommittedClaimAHoldAgain(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	mustHold(t, l, claim("a", "n", charges{"A": 40}))
	if l.Rollback("a", start) {
		t.Error("Rollback of a hold says true")
	}
	l.Commit("a")
	if !l.Rollback("a", start.Add(time.Second)) {
		t.Fatal("Rollback of a committed claim says false")
	}
	wantShares(t, l, map[string]ledger.SharesDump{"n/A": {Total: 100, Held: 40, Free: 60}})
	if got := l.Expire(start.Add(time.Second)); len(got) != 1 {
		t.Errorf("Expire released %v, want the rolled-back hold", uids(got))
	}
}

func TestClaimsWithoutGPUsLiveAsOthersAndCountNothing(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	nothing := map[string]ledger.SharesDump{"n/A": {Total: 100, Free: 100}}
	for _, node := range []string{"n", "without-gpus"} {
		mustHold(t, l, claim("a", node, nil))
		if held := l.Snapshot().Node(node).Claims(); len(held) != 1 || held[0].State != ledger.Held {
			t.Errorf("claims on %s after Hold: %v", node, held)
		}
		if r, ok := l.Commit("a"); !ok || r.Plan.Node != node {
			t.Errorf("Commit: %v, %t", r, ok)
		}
		if !l.Rollback("a", start) {
			t.Error("Rollback says false")
		}
		if got := l.Expire(start); len(got) != 1 || l.Len() != 0 {
			t.Errorf("Expire released %v", uids(got))
		}
		mustHold(t, l, claim("a", node, nil))
		l.Commit("a")
		l.Allocate(claim("a", node, nil))
		if l.Rollback("a", start) {
			t.Error("Rollback of a confirmed claim says true")
		}
		wantShares(t, l, nothing)
		if _, ok := l.Release("a"); !ok || l.Len() != 0 {
			t.Error("the claim is not released")
		}
	}
	if l.Snapshot().Node("without-gpus") != nil {
		t.Error("a node that nothing is known of is still there")
	}
}

func TestRollbackDoesNotUndoWhatTheKubeletConfirmed(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A", "B"))
	mustHold(t, l, claim("a", "n", charges{"A": 40}))
	l.Commit("a")
	l.Adopt("a", charges{"B": 40})
	if l.Rollback("a", start) {
		t.Error("Rollback says true")
	}
	wantShares(t, l, map[string]ledger.SharesDump{"n/A": {Total: 100, Free: 100}, "n/B": {Total: 100, Allocated: 40, Free: 60}})
}

func TestHoldElsewhereFreesNothingHere(t *testing.T) {
	l := ledger.New()
	l.SetNode("m", inventory("A"))
	l.SetNode("n", inventory("A")) // no real UUID is on two nodes, but who knows
	l.Allocate(claim("other", "n", charges{"A": 50}))
	mustHold(t, l, claim("a", "m", charges{"A": 60}))
	if got := l.Hold(claim("a", "n", charges{"A": 60}), start); got != ledger.GPUFull {
		t.Errorf("Hold = %q, want %q", got, ledger.GPUFull)
	}
}

func TestAllocateRecordsTheTruthEvenIfItOvercommits(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	mustHold(t, l, claim("held", "n", charges{"A": 90}))
	l.Allocate(claim("a", "n", charges{"A": 70, "gone": 5}))
	l.Allocate(claim("b", "n", charges{"A": 50}))
	l.Allocate(claim("c", "nowhere", charges{"X": 100}))
	l.Allocate(ledger.Claim{Node: "n", Charges: charges{"A": 1}}) // no UID: ignored
	wantShares(t, l, map[string]ledger.SharesDump{
		"n/A":       {Total: 100, Allocated: 120, Held: 90, Free: -110},
		"n/gone":    {Allocated: 5},
		"nowhere/X": {Allocated: 100},
	})
	want := []ledger.Overcommit{{Node: "n", GPU: "A", Total: 100, Charged: 210}}
	if diff := cmp.Diff(want, l.Snapshot().Overcommitted()); diff != "" {
		t.Errorf("Overcommitted (-want +got):\n%s", diff)
	}
	if got := l.Hold(claim("d", "n", charges{"A": 1}), start); got != ledger.GPUFull {
		t.Errorf("Hold on an overcommitted GPU = %q, want %q", got, ledger.GPUFull)
	}
	l.Release("b")
	l.Release("held")
	if got := l.Snapshot().Overcommitted(); got != nil {
		t.Errorf("Overcommitted = %v after the release", got)
	}
}

func TestAllocateOverwritesAHoldElsewhere(t *testing.T) {
	l := ledger.New()
	l.SetNode("m", inventory("A"))
	l.SetNode("n", inventory("B"))
	mustHold(t, l, claim("a", "m", charges{"A": 30}))
	if !l.Allocate(claim("a", "n", charges{"B": 40})) {
		t.Error("Allocate says that nothing changed")
	}
	wantShares(t, l, map[string]ledger.SharesDump{
		"m/A": {Total: 100, Free: 100}, "n/B": {Total: 100, Allocated: 40, Free: 60},
	})
}

func TestAdoptBelievesTheKubelet(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A", "B"))
	planned, given := charges{"A": 40}, charges{"B": 40}
	if l.Adopt("a", given) {
		t.Error("Adopt for an unknown pod says true")
	}
	mustHold(t, l, claim("a", "n", planned))
	if l.Adopt("a", given) {
		t.Error("Adopt for a pod that is only held says true")
	}
	l.Allocate(claim("a", "n", planned))
	if l.Adopt("a", planned) {
		t.Error("Adopt of what was planned says that it changed something")
	}
	if l.Adopt("a", nil) {
		t.Error("Adopt of nothing says that it changed something")
	}
	if !l.Adopt("a", given) || l.Adopt("a", given) {
		t.Error("Adopt must say true once")
	}
	if l.Allocate(claim("a", "n", planned)) {
		t.Error("a repeated event made Allocate forget the adoption")
	}
	if r, _ := l.Get("a"); !r.Adopted() || r.On("A") != 0 || r.On("B") != 40 {
		t.Errorf("record %+v, want 40 shares of B", r)
	}
	wantShares(t, l, map[string]ledger.SharesDump{
		"n/A": {Total: 100, Free: 100}, "n/B": {Total: 100, Allocated: 40, Free: 60},
	})
	if !l.Adopt("a", planned) {
		t.Error("Adopt back says that nothing changed")
	}
	if r, _ := l.Get("a"); r.Adopted() {
		t.Error("Adopted says true for what was planned")
	}
}

func TestReleaseIsIdempotent(t *testing.T) {
	l := ledger.New()
	l.SetNode("n", inventory("A"))
	l.Allocate(claim("a", "n", charges{"A": 40}))
	r, ok := l.Release("a")
	if !ok || r.On("A") != 40 {
		t.Errorf("Release = %+v, %v", r, ok)
	}
	version := l.Version()
	if _, ok := l.Release("a"); ok || l.Version() != version {
		t.Error("a second Release did something")
	}
	wantShares(t, l, map[string]ledger.SharesDump{"n/A": {Total: 100, Free: 100}})
}

func TestChargesSurviveNodesAndGPUsThatDisappear(t *testing.T) {
	full := inventory("A", "B")
	half := inventory("B")
	l := ledger.New()
	l.Allocate(claim("a", "n", charges{"A": 40, "B": 10})) // before the node is known
	l.SetNode("n", full)
	mustHold(t, l, claim("b", "n", charges{"A": 20}))
	want := map[string]ledger.SharesDump{
		"n/A": {Total: 100, Allocated: 40, Held: 20, Free: 40}, "n/B": {Total: 100, Allocated: 10, Free: 90},
	}
	wantShares(t, l, want)
	steps := map[string]func(){
		"the annotation":  func() { l.RemoveNode("n"); l.RemoveNode("n") },
		"one of its GPUs": func() { l.SetNode("n", half) },
	}
	for what, disappear := range steps {
		disappear()
		if got := l.Hold(claim("c", "n", charges{"A": 1}), start); got == "" {
			t.Errorf("a hold was taken while %s was gone", what)
		}
		l.SetNode("n", full)
		wantShares(t, l, want)
	}
	l.RemoveNode("n")
	l.Release("a")
	l.Release("b")
	if got := l.Snapshot(); got.Len() != 0 || got.Node("n") != nil {
		t.Errorf("the node is still there though nothing is known of it: %+v", got.Dump())
	}
}

func TestSetNodeSaysWhetherAnythingChanged(t *testing.T) {
	l := ledger.New()
	if !l.SetNode("n", inventory("A")) {
		t.Error("the first SetNode says that nothing changed")
	}
	if l.SetNode("n", inventory("A")) {
		t.Error("the same inventory again says that something changed")
	}
	sick := inventory("A")
	sick.GPUs[0].Healthy, sick.GPUs[0].Reason = false, "XID 79"
	if !l.SetNode("n", sick) {
		t.Error("a GPU that became unhealthy says that nothing changed")
	}
	if l.RemoveNode("other") {
		t.Error("RemoveNode of an unknown node says that something changed")
	}
}

func TestInventoriesThatMakeNoSenseDoNotBreakTheLedger(t *testing.T) {
	l := ledger.New()
	inv := inventory("A", "A", "B")
	inv.SharesPerGPU = -5
	inv.GPUs[2].Index = -7
	inv.GPUs[2].Links = []contract.Link{{To: 0, Type: contract.LinkNVLink}, {To: 99, Type: contract.LinkNVLink}, {To: -7, Type: contract.LinkNVLink}}
	l.SetNode("n", inv)
	wantShares(t, l, map[string]ledger.SharesDump{"n/A": {Total: 1, Free: 1}, "n/B": {Total: 1, Free: 1}})
	l.Allocate(claim("a", "n", charges{"A": 1 << 62}))
	l.Allocate(claim("b", "n", charges{"A": 1 << 62}))
	l.Allocate(claim("c", "n", charges{"A": 1 << 62}))
	if free := l.Node("n").GPUs()[1].Free; free >= 0 {
		t.Errorf("free shares wrapped around to %d", free)
	}
}
