package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tranche-dev/tranche/pkg/units"
)

// PlanVersion is the Version of the plans that this release writes and reads.
const PlanVersion = 1

// Plan says which GPUs a bound pod uses, container by container.
type Plan struct {
	Version int `json:"v"`
	// Node is the node that the plan was made for.
	Node string `json:"node"`
	// Containers holds, per container that uses GPUs, one Grant per GPU.
	Containers map[string][]Grant `json:"containers"`
}

// Grant is a container's part of one GPU.
type Grant struct {
	GPU    GPUUUID      `json:"gpu"`
	Shares units.Shares `json:"shares"`
	// MemoryMiB is the memory that the container may use on this GPU: what was
	// asked for in memory, else what the shares stand for.
	MemoryMiB units.MiB `json:"memoryMiB"`
}

// ErrPlan is wrapped by every error of ParsePlan.
var ErrPlan = errors.New("annotation " + PlanAnnotation)

// ParsePlan reads PlanAnnotation. It accepts only plans that the extender can
// have written: known version, a node, every container with at least one GPU,
// no GPU twice in one container, positive shares.
func ParsePlan(s string) (Plan, error) {
	var p Plan
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	return p, p.validate()
}

func (p Plan) validate() error {
	if p.Version != PlanVersion {
		return fmt.Errorf("%w: version %d is not %d", ErrPlan, p.Version, PlanVersion)
	}
	if p.Node == "" {
		return fmt.Errorf("%w: no node", ErrPlan)
	}
	if len(p.Containers) == 0 {
		return fmt.Errorf("%w: no containers", ErrPlan)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
		grants := p.Containers[name]
		if len(grants) == 0 {
			return fmt.Errorf("%w: container %s has no GPU", ErrPlan, name)
		}
		seen := make(map[GPUUUID]bool, len(grants))
		for _, g := range grants {
			if !g.GPU.valid() || seen[g.GPU] {
				return fmt.Errorf("%w: container %s has GPU %q, which is no UUID or there twice", ErrPlan, name, g.GPU)
			}
			if g.Shares < 1 || g.Shares > units.MaxSharesPerGPU || g.MemoryMiB < 0 {
				return fmt.Errorf("%w: container %s has %d shares and %d MiB of GPU %s", ErrPlan, name, g.Shares, g.MemoryMiB, g.GPU)
			}
			seen[g.GPU] = true
		}
	}
	return nil
}

// Format returns the annotation's text; equal plans give equal text. It fails
// where ParsePlan would.
func (p Plan) Format() (string, error) {
	p.Version = PlanVersion
	if err := p.validate(); err != nil {
		return "", err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrPlan, err)
	}
	return string(b), nil
}

// Charges returns what a pod with these containers, in the order in which the
// kubelet starts them, costs on each GPU of plan p. It is Kubernetes' own rule
// for effective requests, applied to each GPU: ordinary init containers run one
// after the other before the app containers, sidecars run beside everything
// that starts after them. Containers that the plan names but roles do not are
// charged as app containers, so a charge is never too small.
func (p Plan) Charges(roles []ContainerRole) map[GPUUUID]units.Shares {
	running := map[GPUUUID]units.Shares{} // sidecars started so far, then apps
	peak := map[GPUUUID]units.Shares{}
	raise := func(gpu GPUUUID, s units.Shares) { peak[gpu] = max(peak[gpu], s) }
	known := make(map[string]bool, len(roles))
	for _, c := range roles {
		known[c.Name] = true
		for _, g := range p.Containers[c.Name] {
			if c.Role == RoleInit {
				raise(g.GPU, running[g.GPU]+g.Shares)
				continue
			}
			running[g.GPU] += g.Shares
		}
	}
	for name, grants := range p.Containers {
		if known[name] {
			continue
		}
		for _, g := range grants {
			running[g.GPU] += g.Shares
		}
	}
	for gpu, s := range running {
		raise(gpu, s)
	}
	return peak
}
