// Package reclaim decides which running pods are evicted so that a gang finds
// room: the fewest, and of those the least precious.
//
// Select takes the nodes and members that gang.Plan takes, and the units that
// may go: a gang, a member that a gang can spare, or a single pod, each gone or
// kept as a whole. Which of them may be taken, the caller's Rules say. Package
// gang has the last word on whether the members fit.
//
// Of two sets the one with fewer pods is evicted; or else the one whose most
// precious pod has the lower priority, or has started later, and so on from pod
// to pod; or else IDs settle it.
//
// Members are placed one after the other, the hardest first, each where the
// best set of units makes room for one more (search). If gang.Plan does not
// confirm the result, or Rules want more, units are added by preference until
// both are content. Last, what turns out not to be needed is given back, the
// most precious first.
//
// # Exactness
//
// No victim is superfluous as long as gang.Plan is exact for the members and is
// not asked more than maxPlans times. For one member the set is the best there
// is, as far as siteSteps and allSteps reach, which is all sets on nodes with
// about a dozen units in the way. For gangs it is what is best for one member
// after the other: a big unit that makes room for several of them may be passed
// over for small ones with more pods together. If all units have one pod, Rules
// do not depend on what is taken and the members are alike, Select finds a set
// if there is one.
//
// Everything here is pure: equal input gives equal output, whatever the order
// of nodes and units.
package reclaim
