package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// installManifest is what users apply, rendered from the chart.
func (p paths) installManifest() string { return filepath.Join(p.root, "manifests", "install.yaml") }

// hostProcesses are the kinds that are left out: Tranche's programs run as
// processes of this machine, not as pods.
var hostProcesses = []string{"Deployment", "DaemonSet", "Service", "PodDisruptionBudget"}

// applyManifests installs Tranche as its manifest says, apart from its programs,
// and removes what an earlier manifest had and this one has not.
func (c *Cluster) applyManifests(ctx context.Context) error {
	text, err := os.ReadFile(c.paths.installManifest())
	if err != nil {
		return fmt.Errorf("the manifest of Tranche: %w", err)
	}
	objects, err := parseManifest(text)
	if err != nil {
		return fmt.Errorf("%s: %w", c.paths.installManifest(), err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return slices.Contains(hostProcesses, o.GetKind()) })
	for _, o := range objects {
		if err := c.localWebhook(o); err != nil {
			return err
		}
	}
	a, err := c.newApplier()
	if err != nil {
		return err
	}
	var applied []objectKey
	for _, o := range inOrder(objects) {
		if err := a.apply(ctx, o); err != nil {
			return err
		}
		applied = append(applied, keyOf(o))
	}
	file := c.paths.in("applied.json")
	var before []objectKey
	if err := readJSON(file, &before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, k := range slices.Backward(before) {
		if !slices.Contains(applied, k) {
			if err := a.remove(ctx, k); err != nil {
				return err
			}
		}
	}
	return writeJSON(file, applied)
}

// parseManifest splits a multi-document YAML text into objects.
func parseManifest(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// inOrder puts definitions before what may use them.
func inOrder(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	rank := func(o *unstructured.Unstructured) int {
		switch o.GetKind() {
		case "Namespace":
			return 0
		case "CustomResourceDefinition":
			return 1
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			return 3
		}
		return 2
	}
	ordered := slices.Clone(objects)
	slices.SortStableFunc(ordered, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return ordered
}

// localWebhook makes the API server call the webhook on this machine.
func (c *Cluster) localWebhook(o *unstructured.Unstructured) error {
	if kind := o.GetKind(); kind != "MutatingWebhookConfiguration" && kind != "ValidatingWebhookConfiguration" {
		return nil
	}
	webhooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	for i, w := range webhooks {
		webhook, ok := w.(map[string]any)
		if !ok {
			return fmt.Errorf("%s %s: webhooks[%d] is a %T", o.GetKind(), o.GetName(), i, w)
		}
		path, _, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err != nil {
			return fmt.Errorf("%s %s: webhooks[%d]: %w", o.GetKind(), o.GetName(), i, err)
		}
		// The certificate authority is not ours to apply: the webhook writes it.
		webhook["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://localhost:%d%s", c.ports[portWebhook], path)}
	}
	return unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
}

// objectKey is enough to find an object again.
type objectKey struct {
	GVK       schema.GroupVersionKind `json:"gvk"`
	Namespace string                  `json:"namespace,omitempty"`
	Name      string                  `json:"name"`
}

func keyOf(o *unstructured.Unstructured) objectKey {
	return objectKey{GVK: o.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// applier writes objects of any kind.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func (c *Cluster) newApplier() (applier, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return applier{}, err
	}
	client, err := c.Dynamic()
	if err != nil {
		return applier{}, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return applier{}, fmt.Errorf("access to the cluster: %w", err)
	}
	return applier{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}, nil
}

// resource finds where objects of a kind live. A kind that was defined a moment
// ago is not served at once.
func (a applier) resource(ctx context.Context, k objectKey) (dynamic.ResourceInterface, error) {
	var mapping *meta.RESTMapping
	err := eventually(ctx, 20*time.Second, eagerly, func(context.Context) error {
		var err error
		mapping, err = a.mapper.RESTMapping(k.GVK.GroupKind(), k.GVK.Version)
		if meta.IsNoMatchError(err) {
			a.mapper.Reset()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return a.client.Resource(mapping.Resource).Namespace(k.Namespace), nil
	}
	return a.client.Resource(mapping.Resource), nil
}

func (a applier) apply(ctx context.Context, o *unstructured.Unstructured) error {
	r, err := a.resource(ctx, keyOf(o))
	if err == nil {
		err = eventually(ctx, 20*time.Second, eagerly, func(ctx context.Context) error {
			_, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
			// Not found: the kind was defined a moment ago. Internal: a webhook
			// whose certificate the API server does not know yet.
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInternalError(err) {
				return hopelessError{err}
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func (a applier) remove(ctx context.Context, k objectKey) error {
	r, err := a.resource(ctx, k)
	if err == nil {
		err = r.Delete(ctx, k.Name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove %s %s: %w", k.GVK.Kind, k.Name, err)
	}
	return nil
}
