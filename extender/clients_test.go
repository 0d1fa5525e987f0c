package extender

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tranche-dev/tranche/extender/internal/fixture"
	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

func TestObjectClientAsksForJSONWithoutDiscovery(t *testing.T) {
	var calls atomic.Int32
	var path atomic.Value
	path.Store("/apis/tranche.dev/v1alpha1/namespaces/demo/gangs/g")
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.URL.Path != path.Load() || strings.Contains(r.Header.Get("Accept"), "protobuf") {
			t.Errorf("%s %s, accepting %q", r.Method, r.URL, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"tranche.dev/v1alpha1","kind":"Gang","metadata":{"name":"g"},"spec":{"minCount":7}}`))
	}))
	defer api.Close()
	c, err := newObjectClient(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
	if err != nil {
		t.Fatal(err)
	}
	gang := &v1alpha1.Gang{}
	if err := c.Get(t.Context(), crclient.ObjectKey{Namespace: "demo", Name: "g"}, gang); err != nil {
		t.Fatal(err)
	}
	if gang.Spec.MinCount != 7 || calls.Load() != 1 {
		t.Errorf("gang %+v after %d calls", gang, calls.Load())
	}
	// Queues are in no namespace.
	path.Store("/apis/tranche.dev/v1alpha1/queues/q")
	if err := c.Get(t.Context(), crclient.ObjectKey{Name: "q"}, &v1alpha1.Queue{}); err != nil {
		t.Fatal(err)
	}
}

func TestAdmissionsAreNotLimitedByTheirClient(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	o := NewOptions()
	o.Kubeconfig, o.KubeAPIQPS, o.KubeAPIBurst = kubeconfig, 1, 1
	fixture.Write(t, kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"clusters: [{name: c, cluster: {server: 'https://localhost:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"))
	c, err := newClients(o)
	if err != nil {
		t.Fatal(err)
	}
	limited, _ := c.main.CoreV1().RESTClient().(*rest.RESTClient)
	free, _ := c.admission.CoreV1().RESTClient().(*rest.RESTClient)
	if limited.GetRateLimiter() == nil || limited.GetRateLimiter().QPS() != 1 || free.GetRateLimiter() != nil {
		t.Errorf("limits: main %v, admission %v", limited.GetRateLimiter(), free.GetRateLimiter())
	}
}
