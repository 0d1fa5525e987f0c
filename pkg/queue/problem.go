package queue

// ProblemKind says what is wrong with a queue.
type ProblemKind int

const (
	// ParentMissing: Problem.Other, the parent of this queue or of one above
	// it, has no spec.
	ParentMissing ProblemKind = iota
	// ParentsFormCycle: Problem.Other, above this queue, is its own ancestor.
	ParentsFormCycle
	// DeservedScaled: the children deserve Have of Problem.Resource together,
	// which is more than Allowed, what this queue deserves; theirs is cut.
	DeservedScaled
	// OverLimit: the queue uses Have of Problem.Resource, more than its limit
	// Allowed.
	OverLimit
	// HasPods: Have charges name this queue although it has children.
	HasPods
)

// Problem is something that whoever looks after a queue should know.
type Problem struct {
	Kind ProblemKind
	// Other is another queue's name, where Kind says so.
	Other string
	// Resource is what Have and Allowed count, where Kind says so.
	Resource      Resource
	Have, Allowed int64
}

// Message returns the problem in plain words, without quantities.
func (p Problem) Message() string {
	switch p.Kind {
	case ParentMissing:
		return "the parent queue " + p.Other + " does not exist"
	case ParentsFormCycle:
		return "the queue " + p.Other + " is its own ancestor"
	case DeservedScaled:
		return "the queues below deserve more than this one, so what they deserve is cut in proportion"
	case OverLimit:
		return "the queue uses more than its limit, so nobody is admitted"
	case HasPods:
		return "pods name this queue although it has queues below it; no more of them are admitted"
	default:
		return "unknown"
	}
}

// Problems returns what is wrong with a queue, by kind and resource; nothing
// for one without a spec. The caller owns the slice.
func (t *Tree) Problems(queue string) []Problem {
	t.wire()
	n := t.nodes[queue]
	if n == nil || !n.known {
		return nil
	}
	var problems []Problem
	if n.stray {
		problems = append(problems, t.strayed(n))
	}
	for r := range t.width {
		deserved := n.spec.Deserved.Get(Resource(r))
		if sum := n.childrenDeserve(r); deserved > 0 && sum > deserved {
			problems = append(problems, Problem{Kind: DeservedScaled, Resource: Resource(r), Have: sum, Allowed: deserved})
		}
	}
	for r, used := range n.used {
		if used > n.limit[r] {
			problems = append(problems, Problem{Kind: OverLimit, Resource: Resource(r), Have: used, Allowed: n.limit[r]})
		}
	}
	if len(n.children) > 0 && n.ids > 0 {
		problems = append(problems, Problem{Kind: HasPods, Have: int64(n.ids)})
	}
	return problems
}

// strayed says why n is a stray.
func (t *Tree) strayed(n *node) Problem {
	refusal := t.misfit(n.name, n)
	if refusal.Kind == UnknownParent {
		return Problem{Kind: ParentMissing, Other: refusal.Parent}
	}
	return Problem{Kind: ParentsFormCycle, Other: refusal.Queue}
}

// childrenDeserve adds up what the children's specs say of r.
func (n *node) childrenDeserve(r int) int64 {
	var sum int64
	for _, c := range n.children {
		sum = add(sum, max(c.spec.Deserved.Get(Resource(r)), 0))
	}
	return sum
}
