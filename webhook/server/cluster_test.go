package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/webhook/mutate"
)

// inventory is a node's annotation with one GPU per pair of model and MiB.
func inventory(t testing.TB, gpus ...any) string {
	t.Helper()
	inv := contract.Inventory{SharesPerGPU: 100}
	for i := 0; i < len(gpus); i += 2 {
		inv.GPUs = append(inv.GPUs, contract.GPU{
			UUID: contract.GPUUUID(fmt.Sprintf("GPU-%d", i)), Model: gpus[i].(string), MemoryMiB: mib(gpus[i+1].(int)),
		})
	}
	text, err := inv.Format()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func node(name, inventory string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{contract.InventoryAnnotation: inventory},
	}}
}

func optedIn(name string, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{contract.InjectLabel: contract.InjectEnabled}, Annotations: annotations,
	}}
}

func TestFleetIsWhatNodesReport(t *testing.T) {
	c := newCluster(testr.New(t))
	check := func(step string, want ...mutate.Model) {
		t.Helper()
		if diff := cmp.Diff(want, c.Fleet().Models); diff != "" && len(want)+len(c.Fleet().Models) > 0 {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	a30, a100small, a100 := mutate.Model{Name: "A30", Memory: 24576}, mutate.Model{Name: "A100", Memory: 40960}, mutate.Model{Name: "A100", Memory: 81920}

	check("no nodes")
	c.setNode(node("plain", ""))
	check("a node without GPUs")
	c.setNode(node("n1", inventory(t, "A30", 24576, "A100", 40960, "A30", 24576)))
	check("one node", a100small, a30)
	c.setNode(node("n2", inventory(t, "A100", 81920)))
	check("a larger card of the same name", a100, a30)
	c.setNode(node("n1", inventory(t, "A30", 24576)))
	check("a card was removed", a100, a30)
	c.removeNode("n2")
	check("a node was removed", a30)
	c.removeNode("n2")
	c.removeNode("never seen")
	check("a node was removed again", a30)
	c.setNode(node("n3", inventory(t, "A30", 24576)))
	c.setNode(node("n1", "{broken"))
	check("an annotation that cannot be read counts as none", a30)
	c.setNode(node("n3", ""))
	check("the last annotation is gone")
}

// The label may be newer than what the informer has shown.
func TestNamespaceWaitsForTheInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(logr.Discard())
		c.setNamespace(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "labelled-late"}})
		time.AfterFunc(patience/2, func() {
			c.setNamespace(optedIn("labelled-late", nil))
			c.setNamespace(optedIn("created-late", map[string]string{contract.DefaultFractionAnnotation: "0.5"}))
		})
		start := time.Now()
		if _, enabled, err := c.Namespace(t.Context(), "labelled-late"); !enabled || err != nil {
			t.Errorf("labelled late: enabled %v, error %v", enabled, err)
		}
		if waited := time.Since(start); waited < patience/2 || waited > patience {
			t.Errorf("waited %s", waited)
		}
		if ns, enabled, err := c.Namespace(t.Context(), "created-late"); ns.DefaultFraction != "0.5" || !enabled || err != nil {
			t.Errorf("created late: %+v, enabled %v, error %v", ns, enabled, err)
		}
	})
}

func TestNamespaceGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(logr.Discard())
		c.setNamespace(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
		start := time.Now()
		if _, enabled, err := c.Namespace(t.Context(), "plain"); enabled || err != nil {
			t.Errorf("not opted in: enabled %v, error %v", enabled, err)
		}
		if _, _, err := c.Namespace(t.Context(), "unknown"); !errors.Is(err, errNoNamespace) {
			t.Errorf("unknown: error %v", err)
		}
		if waited := time.Since(start); waited > 2*patience+2*patienceStep {
			t.Errorf("waited %s", waited)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start = time.Now()
		if _, enabled, err := c.Namespace(ctx, "plain"); enabled || err != nil || time.Since(start) > patienceStep {
			t.Errorf("client gone: enabled %v, error %v after %s", enabled, err, time.Since(start))
		}

		c.setNamespace(optedIn("plain", nil))
		c.removeNamespace("plain")
		if _, enabled, err := c.Namespace(t.Context(), "plain"); enabled || !errors.Is(err, errNoNamespace) {
			t.Errorf("removed: enabled %v, error %v", enabled, err)
		}
	})
}

func TestNamespaceIsUnknownBeforeTheFirstList(t *testing.T) {
	c := newCluster(logr.Discard())
	c.setNamespace(optedIn("demo", nil))
	c.synced = []func() bool{func() bool { return true }, func() bool { return false }}
	if _, _, err := c.Namespace(t.Context(), "demo"); !errors.Is(err, errNotReady) {
		t.Errorf("error %v", err)
	}
}

func TestStripKeepsWhatIsRead(t *testing.T) {
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		Labels:      map[string]string{contract.InjectLabel: "enabled", "other": "x"},
		Annotations: map[string]string{contract.InventoryAnnotation: "{}", "large": "y"},
	}}
	before := full.DeepCopy()
	got, err := strip(full)
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n", ResourceVersion: "7",
		Labels:      map[string]string{contract.InjectLabel: "enabled"},
		Annotations: map[string]string{contract.InventoryAnnotation: "{}"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stripped (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, full); diff != "" {
		t.Errorf("the original was changed (-before +after):\n%s", diff)
	}
}
