package gang

import (
	"cmp"
	"slices"
)

// domain is the sites that have one value of the topology's label.
type domain struct {
	value string
	sites []site
	// places are how many copies of each shape fit at most, spare
	// how many more than asked, and fits whether no shape has less.
	places []int
	spare  int
	fits   bool
}

// domains groups the sites that take anyone, in the order of the values. Nodes
// without the label are in no domain.
func (p *planner) domains(label string) []*domain {
	byValue := map[string]*domain{}
	var all []*domain
	for i := range p.sites {
		value, ok := p.sites[i].node.Labels[label]
		if !ok || !slices.ContainsFunc(p.shapes, func(s *shape) bool { return s.bound[i] > 0 }) {
			continue
		}
		d := byValue[value]
		if d == nil {
			d = &domain{value: value}
			byValue[value] = d
			all = append(all, d)
		}
		d.sites = append(d.sites, p.sites[i])
	}
	for _, d := range all {
		d.measure(p.shapes)
	}
	slices.SortFunc(all, func(a, b *domain) int { return cmp.Compare(a.value, b.value) })
	return all
}

func (d *domain) measure(shapes []*shape) {
	d.places, d.spare, d.fits = nil, 0, true
	for _, s := range shapes {
		n := s.placesOn(d.sites)
		d.places = append(d.places, n)
		d.spare += n - s.count
		d.fits = d.fits && n >= s.count
	}
}

// home is the domain where members of the gang sit already; ok is false if
// pinned members sit in different ones, or outside all of them.
func (p *planner) home(t *Topology) (value string, ok bool) {
	value, ok = t.Domain, true
	pinned := map[string]bool{}
	for i := range p.members {
		pinned[p.members[i].Pinned] = true
	}
	for i := range p.sites {
		n := p.sites[i].node
		if !pinned[n.Name] {
			continue
		}
		v, labelled := n.Labels[t.NodeLabel]
		ok = ok && labelled && (value == "" || value == v)
		value = cmp.Or(value, v)
	}
	return value, ok
}

// fillDomains is Plan for a gang that is to stay together.
func (p *planner) fillDomains(t *Topology) ([]Place, *Shortfall) {
	domains := p.domains(t.NodeLabel)
	home, agreed := p.home(t)
	if t.Required {
		if agreed {
			if places := p.fillOne(domains, home); places != nil {
				return places, nil
			}
		}
		return nil, p.explainDomains(t, domains, home, agreed)
	}
	if places := p.fillOne(domains, home); places != nil {
		return places, nil
	}
	if places := p.fillFew(domains, home); places != nil {
		return places, nil
	}
	if places := p.fill(p.sites); places != nil {
		return places, nil
	}
	return nil, p.explain(p.sites)
}

// fillOne finds places in one domain: the one named only, or else the tightest
// that takes all, so that bigger ones stay whole for who needs them.
func (p *planner) fillOne(domains []*domain, only string) []Place {
	tightest := slices.SortedStableFunc(slices.Values(domains), func(a, b *domain) int {
		return cmp.Or(cmp.Compare(a.spare, b.spare), cmp.Compare(len(a.sites), len(b.sites)))
	})
	for _, d := range tightest {
		if only != "" && d.value != only || !d.fits {
			continue
		}
		if places := p.fill(d.sites); places != nil {
			return places
		}
	}
	return nil
}

// unions bounds how many unions of domains fillFew tries.
const unions = 4

// fillFew finds places in few domains together: home, then the biggest ones, as
// few as have room. That is a heuristic: other domains might do with fewer.
func (p *planner) fillFew(domains []*domain, home string) []Place {
	biggest := slices.SortedStableFunc(slices.Values(domains), func(a, b *domain) int {
		if (a.value == home) != (b.value == home) && home != "" {
			if a.value == home {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.spare, a.spare)
	})
	places, tried := make([]int, len(p.shapes)), 0
	for k, d := range biggest {
		enough := true
		for i, s := range p.shapes {
			places[i] += d.places[i]
			enough = enough && places[i] >= s.count
		}
		if !enough {
			continue
		}
		var sites []site
		for _, d := range biggest[:k+1] {
			sites = append(sites, d.sites...)
		}
		slices.SortFunc(sites, func(a, b site) int { return cmp.Compare(a.id, b.id) })
		if places := p.fill(sites); places != nil {
			return places
		}
		if tried++; tried == unions {
			break
		}
	}
	return nil
}
