package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds are the owners that are read. The manifests give tranche-webhook the
// right to get each of them, and a test compares the two.
var kinds = []schema.GroupVersionKind{
	batchv1.SchemeGroupVersion.WithKind("Job"),
	appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	corev1.SchemeGroupVersion.WithKind("ReplicationController"),
}

// kindOf finds the kind of an owner by group and kind alone: whoever wrote the
// reference may know another version of it.
func kindOf(ref *metav1.OwnerReference) (schema.GroupVersionKind, bool) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}, false
	}
	for _, k := range kinds {
		if k.Group == gv.Group && k.Kind == ref.Kind {
			return k, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// Mapper knows the resources of all owners that are read, so that a client needs
// no discovery: one read is one request.
func Mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, k := range kinds {
		m.Add(k, meta.RESTScopeNamespace)
	}
	return m
}

// Resources are the owners that are read as "group/resource", as RBAC names them.
func Resources() []string {
	var all []string
	for _, k := range kinds {
		plural, _ := meta.UnsafeGuessKindToResource(k)
		all = append(all, k.Group+"/"+plural.Resource)
	}
	return all
}
