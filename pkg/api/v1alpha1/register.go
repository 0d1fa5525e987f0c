package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "tranche.dev", Version: "v1alpha1"}

// AddToScheme teaches a scheme this package's types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Queue{}, &QueueList{}, &Gang{}, &GangList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
