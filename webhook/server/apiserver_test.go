package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

// apiServer is as much of an API server as tranche-webhook uses: lists, watches
// and updates of a few kinds. Like RBAC in the shipped manifests, it lets only
// single Secrets and webhook configurations be listed, and nothing be created.
type apiServer struct {
	*httptest.Server
	codecs serializer.CodecFactory

	mu      sync.Mutex
	version int
	// objects are keyed by the path of their list, then by name.
	objects map[string]map[string]*unstructured.Unstructured
	history []apiEvent
	// changed is closed, and replaced, at every change.
	changed chan struct{}
	// denied are the requests that the rights of our service account forbid.
	denied []string
	// withheld makes lists of queues fail.
	withheld atomic.Bool
}

type apiEvent struct {
	path, kind string
	object     *unstructured.Unstructured
	version    int
}

const (
	namespacesPath = "/api/v1/namespaces"
	nodesPath      = "/api/v1/nodes"
	secretsPath    = "/api/v1/namespaces/tranche-system/secrets"
	mutatingPath   = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	validatingPath = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	jobsPath       = "/apis/batch/v1/namespaces/demo/jobs"
	queuesPath     = "/apis/tranche.dev/v1alpha1/queues"
)

func newAPIServer(t *testing.T, objects map[string]string) *apiServer {
	t.Helper()
	s := &apiServer{
		codecs:  serializer.NewCodecFactory(testScheme(t)),
		objects: map[string]map[string]*unstructured.Unstructured{},
		changed: make(chan struct{}),
	}
	for path, text := range objects {
		for doc := range strings.SplitSeq(text, "---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
				t.Fatal(err)
			}
			s.put(path, o)
		}
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// kubeconfig writes one that leads to s.
func (s *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `
clusters: [{name: c, cluster: {server: ` + s.URL + `}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// get returns a copy of an object, nil if there is none.
func (s *apiServer) get(path, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[path][name]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

// put creates or replaces an object.
func (s *apiServer) put(path string, o *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, o.DeepCopy())
}

func (s *apiServer) store(path string, o *unstructured.Unstructured) {
	kind := "ADDED"
	if s.objects[path] == nil {
		s.objects[path] = map[string]*unstructured.Unstructured{}
	}
	if s.objects[path][o.GetName()] != nil {
		kind = "MODIFIED"
	}
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[path][o.GetName()] = o
	s.history = append(s.history, apiEvent{path, kind, o, s.version})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) refused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.denied)
}

// discovery is what an API server says before anybody has applied Tranche's
// CustomResourceDefinitions.
var discovery = map[string]string{
	"/api":                                  `{"kind":"APIVersions","versions":["v1"]}`,
	"/api/v1":                               `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"namespaces","kind":"Namespace","namespaced":false,"verbs":["list"]},{"name":"nodes","kind":"Node","namespaced":false,"verbs":["list"]},{"name":"secrets","kind":"Secret","namespaced":true,"verbs":["list"]}]}`,
	"/apis":                                 `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"admissionregistration.k8s.io","versions":[{"groupVersion":"admissionregistration.k8s.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"admissionregistration.k8s.io/v1","version":"v1"}}]}`,
	"/apis/admissionregistration.k8s.io/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"admissionregistration.k8s.io/v1","resources":[{"name":"mutatingwebhookconfigurations","kind":"MutatingWebhookConfiguration","namespaced":false,"verbs":["list"]},{"name":"validatingwebhookconfigurations","kind":"ValidatingWebhookConfiguration","namespaced":false,"verbs":["list"]}]}`,
}

// trancheDiscovery is what it says then, in addition.
var trancheDiscovery = map[string]string{
	"/apis":                      `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"admissionregistration.k8s.io","versions":[{"groupVersion":"admissionregistration.k8s.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"admissionregistration.k8s.io/v1","version":"v1"}},{"name":"tranche.dev","versions":[{"groupVersion":"tranche.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"tranche.dev/v1alpha1","version":"v1alpha1"}}]}`,
	"/apis/tranche.dev/v1alpha1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"tranche.dev/v1alpha1","resources":[{"name":"queues","kind":"Queue","namespaced":false,"verbs":["list"]}]}`,
}

// discover answers how the API server describes itself, "" on other paths.
// Queues are served if there are any.
func (s *apiServer) discover(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := trancheDiscovery[path]; text != "" && len(s.objects[queuesPath]) > 0 {
		return text
	}
	return discovery[path]
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if text := s.discover(r.URL.Path); text != "" {
		_, _ = io.WriteString(w, text)
		return
	}
	if trancheDiscovery[r.URL.Path] != "" {
		fail(w, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path))
		return
	}
	query := r.URL.Query()
	only := strings.TrimPrefix(query.Get("fieldSelector"), "metadata.name=")
	metadata := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	// What RBAC would forbid: all Secrets, all configurations, whole nodes.
	open := r.URL.Path == namespacesPath || r.URL.Path == nodesPath
	switch {
	case r.URL.Path == queuesPath && s.withheld.Load():
		fail(w, apierrors.NewInternalError(errors.New("not now")))
	case r.Method == http.MethodPut:
		s.update(w, r)
	case r.Method == http.MethodGet && r.URL.Path == secretsPath+"/tranche-webhook-tls":
		s.read(w, secretsPath, "tranche-webhook-tls", false)
	case r.Method == http.MethodGet && metadata && strings.HasPrefix(r.URL.Path, jobsPath+"/"): // no list of them
		s.read(w, jobsPath, strings.TrimPrefix(r.URL.Path, jobsPath+"/"), true)
	case r.Method != http.MethodGet || open != metadata || !open && only == "" && r.URL.Path != queuesPath:
		s.mu.Lock()
		s.denied = append(s.denied, r.Method+" "+r.URL.String())
		s.mu.Unlock()
		fail(w, apierrors.NewForbidden(schema.GroupResource{}, r.URL.Path, errors.New("no right to")))
	case query.Get("sendInitialEvents") != "":
		// As servers without this feature do; the client lists instead.
		fail(w, apierrors.NewInvalid(schema.GroupKind{}, "", nil))
	case query.Get("watch") != "":
		s.watch(w, r, only, metadata)
	default:
		s.list(w, r.URL.Path, only, metadata)
	}
}

func fail(w http.ResponseWriter, err *apierrors.StatusError) {
	w.WriteHeader(int(err.ErrStatus.Code))
	err.ErrStatus.Kind, err.ErrStatus.APIVersion = "Status", "v1"
	_ = json.NewEncoder(w).Encode(err.ErrStatus)
}

// shown is an object as a list of metadata shows it.
func shown(o *unstructured.Unstructured, metadata bool) map[string]any {
	if !metadata {
		return o.Object
	}
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o.Object["metadata"]}
}

func (s *apiServer) read(w http.ResponseWriter, path, name string, metadata bool) {
	o := s.get(path, name)
	if o == nil {
		fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: path}, name))
		return
	}
	_ = json.NewEncoder(w).Encode(shown(o, metadata))
}

func (s *apiServer) list(w http.ResponseWriter, path, only string, metadata bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	kind, apiVersion := "List", "v1"
	for _, name := range slices.Sorted(maps.Keys(s.objects[path])) {
		if o := s.objects[path][name]; only == "" || only == name {
			items = append(items, shown(o, metadata))
			kind, apiVersion = o.GetKind()+"List", o.GetAPIVersion()
		}
	}
	if path == secretsPath {
		kind = "SecretList" // a typed client wants it of an empty list, too
	}
	if metadata {
		kind, apiVersion = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": apiVersion, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, only string, metadata bool) {
	flusher := w.(http.Flusher)
	flusher.Flush()
	seen, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for {
		s.mu.Lock()
		events, changed := slices.Clone(s.history), s.changed
		s.mu.Unlock()
		for _, e := range events {
			if e.version > seen && e.path == r.URL.Path && (only == "" || only == e.object.GetName()) {
				_ = json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": shown(e.object, metadata)})
			}
			seen = max(seen, e.version)
		}
		flusher.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *apiServer) update(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, apierrors.NewInternalError(err))
		return
	}
	o, err := s.decode(body)
	if err != nil {
		fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, name := r.URL.Path[:strings.LastIndex(r.URL.Path, "/")], r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	old := s.objects[path][name]
	resource := schema.GroupResource{Resource: path}
	switch {
	case old == nil:
		fail(w, apierrors.NewNotFound(resource, name))
		return
	case old.GetResourceVersion() != o.GetResourceVersion():
		fail(w, apierrors.NewConflict(resource, name, errors.New("it is newer")))
		return
	}
	o.SetResourceVersion("")
	same := old.DeepCopy()
	same.SetResourceVersion("")
	if left, right := mustJSON(same.Object), mustJSON(o.Object); left != right { // an update that changes nothing is none
		s.store(path, o)
	}
	_ = json.NewEncoder(w).Encode(s.objects[path][name].Object)
}

// decode reads protobuf, which clients of built-in kinds send, and JSON.
func (s *apiServer) decode(body []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if json.Unmarshal(body, &o.Object) == nil {
		return o, nil
	}
	typed, gvk, err := s.codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if o.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	o.SetGroupVersionKind(*gvk)
	if o.Object["metadata"].(map[string]any)["creationTimestamp"] == nil {
		unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	}
	return o, nil
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
