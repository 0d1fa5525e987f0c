package waste

// Tables are made anew when the number of pods seen has grown by a quarter: at
// first after every pod, and at latest after mostNew. To wait for the first
// twenty cost a tenth of a percent of the whole cluster in replays of openb.
const mostNew = 500

// mostSeen is the number of pods at which all counts are halved, so that what
// comes now weighs more than what came long ago, and so that shapes which do not
// come any more are forgotten. It bounds the number of shapes too.
const mostSeen = 20_000

// Learner counts the shapes of the pods that arrive, each pod once, whether or
// not it finds a place. One goroutine owns it.
type Learner struct {
	counts map[Shape]int
	// seen is the sum of counts, due the seen at which Tables should be made.
	seen, due int
}

// NewLearner returns a Learner that has seen these, which may be none, such as
// those that Shapes of another returned.
func NewLearner(seen ...Counted) *Learner {
	l := &Learner{counts: map[Shape]int{}, due: 1}
	for _, c := range seen {
		if c.Count > 0 {
			l.counts[c.Shape] += c.Count
			l.seen += c.Count
		}
	}
	return l
}

// Observe counts a pod, and says whether Tables are due to be made anew.
func (l *Learner) Observe(s Shape) (due bool) {
	l.counts[s]++
	l.seen++
	if l.seen >= mostSeen {
		l.forget()
	}
	return l.seen >= l.due
}

// forget halves all counts.
func (l *Learner) forget() {
	seen := 0
	for s, n := range l.counts {
		if n /= 2; n == 0 {
			delete(l.counts, s)
			continue
		}
		l.counts[s] = n
		seen += n
	}
	// What was still to come until the next Tables stays as it was.
	l.due -= l.seen - seen
	l.seen = seen
}

// Shapes lists what was counted, the most frequent first. The list belongs to
// the caller.
func (l *Learner) Shapes() []Counted {
	shapes := make([]Counted, 0, len(l.counts))
	for s, n := range l.counts {
		shapes = append(shapes, Counted{s, n})
	}
	byFrequency(shapes)
	return shapes
}

// Tables makes the tables for what was counted so far. Call it when Observe says
// that they are due, and when the GPUs of the cluster have changed.
func (l *Learner) Tables(c Cluster) *Tables {
	l.due = l.seen + min(max(l.seen/4, 1), mostNew)
	return NewTables(l.Shapes(), c)
}
