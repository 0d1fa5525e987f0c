package contract

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/pkg/units"
)

// Role is how a container takes part in a pod's life, which decides when it
// holds GPUs.
type Role int

// RoleApp containers run to the pod's end; RoleSidecar are init containers
// with restartPolicy Always, which do too; RoleInit end before the apps start.
const (
	RoleApp Role = iota
	RoleSidecar
	RoleInit
)

// ContainerRole is a container's name and role.
type ContainerRole struct {
	Name string
	Role Role
}

// Roles lists a pod's containers in the order in which the kubelet gives them
// devices: init containers as written, then app containers as written.
func Roles(spec *corev1.PodSpec) []ContainerRole {
	roles := make([]ContainerRole, 0, len(spec.InitContainers)+len(spec.Containers))
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		role := RoleInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			role = RoleSidecar
		}
		roles = append(roles, ContainerRole{c.Name, role})
	}
	for i := range spec.Containers {
		roles = append(roles, ContainerRole{spec.Containers[i].Name, RoleApp})
	}
	return roles
}

// Demand is what one container asks for: Count different GPUs of one node, and
// on each of them the same Shares or Memory.
type Demand struct {
	ContainerRole
	// Count is at least 1.
	Count int
	// Whole is set for nvidia.com/gpu; Shares is then a whole GPU.
	Whole bool
	// Shares per GPU, between 1 and Resources.PerGPU. Zero if Memory is set:
	// how many shares that takes depends on the GPU.
	Shares units.Shares
	// Memory per GPU, or zero.
	Memory units.MiB
}

// SharesOn returns the shares that d takes on each GPU of that size; more than
// perGPU if it does not fit there at all.
func (d Demand) SharesOn(gpu units.MiB, perGPU units.Shares) units.Shares {
	switch {
	case d.Whole:
		return perGPU
	case d.Memory > 0:
		return units.SharesForMemory(d.Memory, gpu, perGPU)
	default:
		return d.Shares
	}
}

// GrantOn returns d's Grant on one GPU.
func (d Demand) GrantOn(gpu GPU, perGPU units.Shares) Grant {
	s := d.SharesOn(gpu.MemoryMiB, perGPU)
	mem := d.Memory
	if mem == 0 || d.Whole {
		mem = units.MemoryForShares(s, gpu.MemoryMiB, perGPU)
	}
	return Grant{GPU: gpu.UUID, Shares: s, MemoryMiB: mem}
}

// Limit returns the resource and the amount that the container's limits must
// show for d. For Memory it is what the largest GPU of the cluster would take:
// a lower bound, since the scheduler and the kubelet count without knowing the
// GPU; ledger and plan are exact.
func (d Demand) Limit(res Resources, largest units.MiB) (corev1.ResourceName, int64) {
	if d.Whole {
		return res.GPU, int64(d.Count)
	}
	return res.Share, int64(d.Count) * int64(d.SharesOn(max(largest, d.Memory), res.PerGPU))
}

// Request is all that a pod asks of Tranche.
type Request struct {
	// Demands are in the order of Roles. Empty: the pod uses no GPU.
	Demands []Demand
	// SameGPUs is set when an ordinary init container uses GPUs. The kubelet
	// hands its devices on to the containers after it, so all containers of
	// the pod must sit on the same GPUs.
	SameGPUs bool
	// Models are the allowed GPU models, sorted; empty: any.
	Models []string
	// Placement is empty if the pod has no wish.
	Placement Placement
	// RequireIsolation restricts the pod to GPUs with an enforced limit.
	RequireIsolation bool
}

// AllowsModel says whether the pod may use a GPU of that model.
func (r Request) AllowsModel(model string) bool {
	return len(r.Models) == 0 || slices.Contains(r.Models, model)
}

// ErrRequest is wrapped by every error of ParsePod.
var ErrRequest = errors.New("GPU request")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRequest}, args...)...)
}

// ParsePod reads a pod's request from its limits and annotations, before or
// after the webhook has translated the annotations into limits: both give the
// same Request. The error joins all problems found, each a sentence that says
// what to write instead.
func ParsePod(pod *corev1.Pod, res Resources) (Request, error) {
	p := parser{res: res, annotations: pod.Annotations, demands: map[string]*Demand{}, total: map[string]int64{}, annotated: map[string]string{}}
	p.containers(pod)
	p.partAnnotations(pod)
	p.count(pod)
	req := Request{}
	p.modelsPlacementIsolation(&req)
	p.unknownContainers()
	for _, c := range p.roles {
		if d := p.demands[c.Name]; d != nil {
			req.Demands = append(req.Demands, *d)
		}
	}
	if len(p.problems) == 0 {
		p.initRules(&req)
	}
	if len(p.problems) > 0 {
		return Request{}, errors.Join(p.problems...)
	}
	return req, nil
}

// parser collects a pod's demands step by step.
type parser struct {
	res         Resources
	annotations map[string]string
	roles       []ContainerRole
	demands     map[string]*Demand
	// total holds, per container, the gpu-share limit as written; annotated,
	// the annotation that said what the container gets.
	total     map[string]int64
	annotated map[string]string
	problems  []error
}

func (p *parser) refuse(format string, args ...any) {
	p.problems = append(p.problems, refuse(format, args...))
}

func (p *parser) role(name string) (ContainerRole, bool) {
	i := slices.IndexFunc(p.roles, func(c ContainerRole) bool { return c.Name == name })
	if i < 0 {
		return ContainerRole{}, false
	}
	return p.roles[i], true
}

// containers reads the limits of all containers.
func (p *parser) containers(pod *corev1.Pod) {
	p.roles = Roles(&pod.Spec)
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range all {
		c := &all[i]
		role, _ := p.role(c.Name)
		if mentions(c, p.res.Share) && mentions(c, p.res.GPU) {
			p.refuse("container %s asks for both %s and %s; write %s for part of a GPU or %s for whole GPUs, not both",
				c.Name, p.res.Share, p.res.GPU, p.res.Share, p.res.GPU)
			continue
		}
		if share := p.limit(c, p.res.Share); share > 0 {
			p.total[c.Name] = share
			p.demands[c.Name] = &Demand{ContainerRole: role, Count: 1, Shares: units.Shares(share)}
		}
		if gpus := p.limit(c, p.res.GPU); gpus > 0 {
			p.demands[c.Name] = &Demand{ContainerRole: role, Count: int(gpus), Whole: true, Shares: p.res.PerGPU}
		}
	}
}

// maxGPUsPerContainer bounds what one container may ask for; no machine has
// more GPUs, and the product with shares stays small.
const maxGPUsPerContainer = 1024

// limit reads one resource of one container; 0 if the container does not
// mention it, or if it was refused.
func (p *parser) limit(c *corev1.Container, name corev1.ResourceName) int64 {
	q, ok := c.Resources.Limits[name]
	if !ok {
		if mentions(c, name) {
			p.refuse("container %s has %s under requests only; write it under limits", c.Name, name)
		}
		return 0
	}
	n, exact := units.WholeNumber(q)
	limit, example := int64(maxGPUsPerContainer), "1"
	if name == p.res.Share {
		limit, example = math.MaxInt64, "50" // checkTotal knows how many GPUs share it
	}
	switch {
	case !exact:
		p.refuse("container %s asks for %s: %s; write a whole number, such as %s, or for a fraction the pod annotation %s: \"0.5\"",
			c.Name, name, q.String(), example, FractionAnnotation)
	case n < 1:
		p.refuse("container %s asks for %s: %s; write at least 1, or leave it out if the container needs no GPU", c.Name, name, q.String())
	case n > limit:
		p.refuse("container %s asks for %s: %s, which no node has; write at most %d", c.Name, name, q.String(), limit)
	case !p.requestAgrees(c, name, n):
		p.refuse("container %s asks for %s: %d under limits and for another amount under requests; leave it out of the requests", c.Name, name, n)
	default:
		return n
	}
	return 0
}

// requestAgrees says whether the request, if there is one, is the limit n, as
// Kubernetes demands of extended resources.
func (*parser) requestAgrees(c *corev1.Container, name corev1.ResourceName, n int64) bool {
	q, ok := c.Resources.Requests[name]
	if !ok {
		return true
	}
	requested, whole := units.WholeNumber(q)
	return whole && requested == n
}

// partAnnotations reads gpu-fraction and gpu-memory, for the pod's target
// container and per container.
func (p *parser) partAnnotations(pod *corev1.Pod) {
	for _, base := range []string{FractionAnnotation, MemoryAnnotation} {
		if text, ok := p.annotations[base]; ok {
			if name, ok := p.target(pod, base); ok {
				p.part(base, base, name, text)
			}
		}
		for _, key := range sortedKeys(p.annotations) {
			name, ok := strings.CutPrefix(key, base+".")
			if !ok {
				continue
			}
			if _, known := p.role(name); !known {
				p.refuse("annotation %s names container %q, which the pod does not have; name one of its containers: %s", key, name, p.names())
				continue
			}
			p.part(base, key, name, p.annotations[key])
		}
	}
}

// target returns the container that pod-wide annotations mean.
func (p *parser) target(pod *corev1.Pod, key string) (string, bool) {
	if name, ok := p.annotations[ContainerAnnotation]; ok {
		_, known := p.role(name)
		return name, known // unknownContainers reports it
	}
	if len(pod.Spec.Containers) == 0 {
		p.refuse("annotation %s: the pod has no containers", key)
		return "", false
	}
	return pod.Spec.Containers[0].Name, true
}

// part sets one container's fraction or memory from an annotation's text.
func (p *parser) part(base, key, name, text string) {
	role, _ := p.role(name)
	d := Demand{ContainerRole: role, Count: 1}
	switch base {
	case FractionAnnotation:
		f, err := units.ParseFraction(text)
		if err != nil {
			p.refuse("annotation %s: %w", key, err)
			return
		}
		d.Shares = f.Shares(p.res.PerGPU)
	default:
		mem, err := units.ParseMemory(text)
		if err != nil {
			p.refuse("annotation %s: %w", key, err)
			return
		}
		d.Memory = mem
	}
	if before := p.demands[name]; before != nil && before.Whole {
		p.refuse("container %s asks for %s and the annotation %s asks for part of a GPU; remove one of them", name, p.res.GPU, key)
		return
	}
	if other, ok := p.annotated[name]; ok {
		p.refuse("container %s gets part of a GPU from two annotations, %s and %s; keep one of them", name, other, key)
		return
	}
	p.annotated[name] = key
	p.demands[name] = &d
}

// count applies gpu-count to its container, and checks the gpu-share limits of
// all containers against what the annotations say, now that counts are known.
func (p *parser) count(pod *corev1.Pod) {
	if text, ok := p.annotations[CountAnnotation]; ok {
		n, err := strconv.Atoi(text)
		name, known := p.countTarget(pod)
		switch d := p.demands[name]; {
		case err != nil || n < 1 || n > maxGPUsPerContainer || strconv.Itoa(n) != text:
			p.refuse("annotation %s: %q; write the number of GPUs, such as \"2\"", CountAnnotation, text)
			return
		case !known:
			return
		case d == nil:
			if len(p.problems) == 0 {
				p.refuse("annotation %s means container %s, which asks for no part of a GPU; add %s or %s, or name the container with %s",
					CountAnnotation, name, FractionAnnotation, MemoryAnnotation, ContainerAnnotation)
			}
			return
		case d.Whole:
			p.refuse("annotation %s means container %s, which asks for %s; that number already is the count of GPUs, so remove the annotation",
				CountAnnotation, name, p.res.GPU)
			return
		default:
			d.Count = n
		}
	}
	for _, c := range p.roles {
		if d, total := p.demands[c.Name], p.total[c.Name]; d != nil && total > 0 {
			p.checkTotal(d, total)
		}
	}
}

// countTarget is the container that gpu-count means: the named one, else the
// only one that asks for part of a GPU, else the first app container.
func (p *parser) countTarget(pod *corev1.Pod) (string, bool) {
	if _, named := p.annotations[ContainerAnnotation]; !named {
		var parts []string
		for name, d := range p.demands {
			if !d.Whole {
				parts = append(parts, name)
			}
		}
		if len(parts) == 1 {
			return parts[0], true
		}
	}
	return p.target(pod, CountAnnotation)
}

// checkTotal reconciles a container's gpu-share limit, a total over its GPUs,
// with its Demand.
func (p *parser) checkTotal(d *Demand, total int64) {
	count := int64(d.Count)
	key, annotated := p.annotated[d.Name]
	switch {
	case total > count*int64(p.res.PerGPU):
		p.refuse("container %s asks for %s: %d, but one GPU has %d; write at most %d, ask for %s for whole GPUs, or spread it over several GPUs with the annotation %s",
			d.Name, p.res.Share, total, p.res.PerGPU, count*int64(p.res.PerGPU), p.res.GPU, CountAnnotation)
	case total%count != 0:
		p.refuse("container %s asks for %s: %d on %d GPUs; write a total that %d divides, such as %d",
			d.Name, p.res.Share, total, count, count, (total/count+1)*count)
	case !annotated:
		d.Shares = units.Shares(total / count)
	case d.Memory == 0 && total != count*int64(d.Shares):
		// Of memory the limit is a lower bound, so any value in range will do.
		p.refuse("container %s asks for %s: %d, but the annotation %s makes it %d; remove one of them",
			d.Name, p.res.Share, total, key, count*int64(d.Shares))
	}
}

func (p *parser) modelsPlacementIsolation(req *Request) {
	if text, ok := p.annotations[ModelAnnotation]; ok {
		for m := range strings.SplitSeq(text, ",") {
			if m = strings.TrimSpace(m); m != "" {
				req.Models = append(req.Models, m)
			}
		}
		slices.Sort(req.Models)
		req.Models = slices.Compact(req.Models)
		if len(req.Models) == 0 {
			p.refuse("annotation %s is empty; write one or more models, such as \"NVIDIA-A100-SXM4-80GB\", or remove it", ModelAnnotation)
		}
	}
	if text, ok := p.annotations[PlacementAnnotation]; ok {
		req.Placement = Placement(text)
		if !slices.Contains(Placements(), req.Placement) {
			p.refuse("annotation %s: %q; write %s", PlacementAnnotation, text, PlacementWords)
		}
	}
	if text, ok := p.annotations[IsolationAnnotation]; ok {
		req.RequireIsolation = true
		if text != IsolationRequired {
			p.refuse("annotation %s: %q; write %q or remove it", IsolationAnnotation, text, IsolationRequired)
		}
	}
}

func (p *parser) unknownContainers() {
	if name, ok := p.annotations[ContainerAnnotation]; ok {
		if _, known := p.role(name); !known {
			p.refuse("annotation %s names container %q, which the pod does not have; name one of its containers: %s", ContainerAnnotation, name, p.names())
		}
	}
}

// initRules applies what the kubelet's hand-over of init containers' devices
// asks for: it reuses them in any order, so the hand-over is exact only on one
// GPU, or when every container takes all of them.
func (p *parser) initRules(req *Request) {
	req.SameGPUs = slices.ContainsFunc(req.Demands, func(d Demand) bool { return d.Role == RoleInit })
	if !req.SameGPUs {
		return
	}
	first := req.Demands[0]
	for _, d := range req.Demands[1:] {
		switch {
		case d.Whole != first.Whole:
			p.refuse("init container and container %s ask for GPUs in different ways; the kubelet hands an init container's GPUs on, so use only %s or only %s in this pod",
				d.Name, p.res.Share, p.res.GPU)
		case (first.Count > 1 || d.Count > 1) && (d.Count != first.Count || d.Shares != first.Shares || d.Memory != first.Memory):
			p.refuse("containers %s and %s ask for different parts of several GPUs in a pod with a GPU init container; the kubelet hands an init container's GPUs on, so ask for the same in each",
				first.Name, d.Name)
		}
	}
	if len(p.problems) == 0 {
		if peak := req.peak(p.res.PerGPU); peak > p.res.PerGPU {
			p.refuse("the containers of a pod with a GPU init container share its GPUs, and together they ask for %d shares of each; one GPU has %d, so ask for less or take the GPU from the init container",
				peak, p.res.PerGPU)
		}
	}
}

// peak is the charge on each GPU of a SameGPUs request; memory counts as one
// share, since the GPU is not known.
func (r Request) peak(perGPU units.Shares) units.Shares {
	plan := Plan{Containers: map[string][]Grant{}}
	roles := make([]ContainerRole, 0, len(r.Demands))
	for _, d := range r.Demands {
		roles = append(roles, d.ContainerRole)
		plan.Containers[d.Name] = []Grant{{GPU: "any", Shares: d.SharesOn(units.MaxMemory, perGPU)}}
	}
	return plan.Charges(roles)["any"]
}

func (p *parser) names() string {
	names := make([]string, 0, len(p.roles))
	for _, c := range p.roles {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
