package bind

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/ledger"
)

func TestWakePatchesOneAnnotation(t *testing.T) {
	run(t, func(k *kit) {
		pod := fixture.Pod("p", "60")
		k.exists(pod)
		k.effects.Wake(ledger.Pod{UID: pod.UID, Namespace: "demo", Name: "p"}, 17)
		synctest.Wait()
		if got := k.stored("p").Annotations[contract.RetryAnnotation]; got != "17-r1" {
			k.Errorf("annotation %q", got)
		}
		// One that is gone is nobody's business.
		k.effects.Wake(ledger.Pod{UID: "x", Namespace: "demo", Name: "gone"}, 18)
		synctest.Wait()
		ok, gone := testutil.ToFloat64(k.metrics.Retries.WithLabelValues("ok")), testutil.ToFloat64(k.metrics.Retries.WithLabelValues("gone"))
		if ok != 1 || gone != 1 {
			k.Errorf("counted %v ok and %v gone, want 1 and 1", ok, gone)
		}
	})
}

func TestWakesAreLimitedAndTriedAgain(t *testing.T) {
	run(t, func(k *kit) {
		failures := 3
		k.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failures > 0 {
				failures--
				return true, nil, errors.New("etcd has no leader")
			}
			return false, nil, nil
		})
		const pods = 60
		for i := range pods {
			pod := fixture.Pod(fmt.Sprint("p", i), "60")
			k.exists(pod)
			k.effects.Wake(ledger.Pod{UID: pod.UID, Namespace: "demo", Name: pod.Name}, 17)
		}
		time.Sleep(time.Second)
		if got := testutil.ToFloat64(k.metrics.Retries.WithLabelValues("ok")); got > 31 {
			k.Errorf("%v patches after a second, want at most the burst of 20 and 10 more", got)
		}
		time.Sleep(10 * time.Second)
		if got := testutil.ToFloat64(k.metrics.Retries.WithLabelValues("ok")); got != pods {
			k.Errorf("%v patches, want all %v", got, pods)
		}
	})
}

func TestWarningsAreOnePerPodTheLastOne(t *testing.T) {
	run(t, func(k *kit) {
		for i := range 40 {
			pod := ledger.Pod{UID: "x", Namespace: "demo", Name: fmt.Sprint("p", i)}
			k.effects.Warn(pod, "Early", "early")
			k.effects.Warn(pod, "GPUUnavailable", "no room "+pod.Name)
		}
		time.Sleep(20 * time.Second)
		var got []string
		for len(k.events.Events) > 0 {
			got = append(got, <-k.events.Events)
		}
		last := fmt.Sprintf("Warning GPUUnavailable no room p%d", 39)
		// Those that were on their way already may have said both.
		if len(got) < 40 || len(got) > 45 || !slices.Contains(got, last) {
			k.Errorf("%d events, want 40 with %q", len(got), last)
		}
	})
}

func TestFailuresSayWhatToDo(t *testing.T) {
	f := &failure{"x", "do that", errors.New("broken")}
	if diff := cmp.Diff("broken; do that", f.Error()); diff != "" {
		t.Error(diff)
	}
}
