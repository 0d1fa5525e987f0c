package reclaim

import (
	"cmp"
	"slices"
	"strings"
)

// byPreference puts first what is rather evicted: fewer pods, lower priority,
// started later. IDs settle the rest.
func byPreference(a, b *Unit) int {
	return cmp.Or(
		cmp.Compare(len(a.Pods), len(b.Pods)), cmp.Compare(a.Priority, b.Priority),
		b.Started.Compare(a.Started), strings.Compare(a.ID, b.ID),
	)
}

// byWorth puts first what is kept if possible: higher priority, started
// earlier, more pods.
func byWorth(a, b *Unit) int {
	return cmp.Or(byRank(a, b), cmp.Compare(len(b.Pods), len(a.Pods)), strings.Compare(b.ID, a.ID))
}

// byRank is what byWorth says of one pod of each.
func byRank(a, b *Unit) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Started.Compare(b.Started))
}

func podsOf(units []*Unit) int {
	n := 0
	for _, u := range units {
		n += len(u.Pods)
	}
	return n
}

// worthOf lists the unit of each pod, the most precious first.
func worthOf(units []*Unit) []*Unit {
	if len(units) == 1 && len(units[0].Pods) == 1 {
		return units
	}
	all := make([]*Unit, 0, podsOf(units))
	for _, u := range slices.SortedFunc(slices.Values(units), byWorth) {
		for range u.Pods {
			all = append(all, u)
		}
	}
	return all
}

// compareWorth says which of two sets, as worthOf lists them, is rather
// evicted: the one with fewer pods, or else the one whose most precious pod is
// worth less, and so on from pod to pod. IDs settle the rest.
func compareWorth(a, b []*Unit) int {
	return cmp.Or(
		cmp.Compare(len(a), len(b)),
		slices.CompareFunc(a, b, func(x, y *Unit) int { return byRank(y, x) }),
		slices.CompareFunc(a, b, func(x, y *Unit) int { return strings.Compare(x.ID, y.ID) }),
	)
}

// byCharge puts big charges first.
func byCharge(a, b *Unit) int {
	return cmp.Or(slices.Compare(b.Charge, a.Charge), byPreference(a, b))
}

// takeAll takes units if Rules allow it, or none of them. The biggest go first:
// where a queue may give only while it has more than its share, the last one to
// be asked about is then the smallest, so that each of them might as well be
// the last. Otherwise a big one might go after a small one though it alone
// would have brought its queue down to its share.
func takeAll(rules Rules, units []*Unit) bool {
	sorted := slices.SortedFunc(slices.Values(units), byCharge)
	for i, u := range sorted {
		if !rules.MayTake(u) {
			returnAll(rules, sorted[:i])
			return false
		}
		rules.Take(u)
	}
	return true
}

func returnAll(rules Rules, units []*Unit) {
	for _, u := range units {
		rules.Return(u)
	}
}
