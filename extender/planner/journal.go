package planner

// journal is a log of which only the newest part is kept.
type journal[T any] struct {
	first uint64
	list  []T
}

// mostEntries bounds a journal; who is further behind looks at everything.
const mostEntries = 16384

func (j *journal[T]) add(entry T) {
	if len(j.list) >= mostEntries {
		half := len(j.list) / 2
		j.list = append(j.list[:0], j.list[half:]...)
		j.first += uint64(half)
	}
	j.list = append(j.list, entry)
}

// end is the number of the entry to come.
func (j *journal[T]) end() uint64 { return j.first + uint64(len(j.list)) }

// since are the entries from that number on. False: they are not known any more.
func (j *journal[T]) since(at uint64) ([]T, bool) {
	if at < j.first {
		return nil, false
	}
	return j.list[at-j.first:], true
}
