package manifests

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
)

// objects are what a YAML stream holds, in order, each as its Go type, or as
// unstructured if the type belongs to somebody else's operator.
type objects []client.Object

// foreign are the groups whose types are not among our modules.
var foreign = []string{"monitoring.coreos.com/", "cert-manager.io/"}

// decode reads a YAML stream strictly: a field that the type does not have, or
// that comes twice, is an error.
func decode(t *testing.T, text string) objects {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var all objects
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var u unstructured.Unstructured
		if err := yaml.UnmarshalStrict(document, &u.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(u.Object) == 0 {
			continue // comments only
		}
		var o runtime.Object = &u
		if !belongsTo(u.GetAPIVersion(), foreign) {
			if o, _, err = decoder.Decode(document, nil, nil); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
		}
		object, ok := o.(client.Object)
		if !ok {
			t.Fatalf("%T is no object", o)
		}
		all = append(all, object)
	}
}

func belongsTo(apiVersion string, groups []string) bool {
	for _, g := range groups {
		if strings.HasPrefix(apiVersion, g) {
			return true
		}
	}
	return false
}

// of returns the objects of one type.
func of[T client.Object](all objects) []T {
	var found []T
	for _, o := range all {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// named returns the only object of a type and name.
func named[T client.Object](t *testing.T, all objects, name string) T {
	t.Helper()
	var found []T
	for _, o := range of[T](all) {
		if o.GetName() == name {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		var none T
		t.Fatalf("%d objects of type %T are named %s, want 1", len(found), none, name)
	}
	return found[0]
}

// template is a pod template with the name of what makes pods of it.
type template struct {
	owner string
	corev1.PodTemplateSpec
}

func templates(all objects) []template {
	var found []template
	for _, d := range of[*appsv1.Deployment](all) {
		found = append(found, template{d.Name, d.Spec.Template})
	}
	for _, d := range of[*appsv1.DaemonSet](all) {
		found = append(found, template{d.Name, d.Spec.Template})
	}
	return found
}
