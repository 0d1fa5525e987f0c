package watch

import (
	"time"

	"github.com/go-logr/logr"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tranche-dev/tranche/extender/view"
)

// groupsAgain is how soon it is noticed that an API server was started anew
// with the API switched on.
const groupsAgain = time.Minute

// groupKind are Kubernetes' own PodGroups, which most clusters do not serve.
func groupKind(client kubernetes.Interface, to Groups) *kind[*view.Group] {
	groups := client.SchedulingV1beta1().PodGroups(metav1.NamespaceAll)
	return &kind[*view.Group]{
		name: "PodGroup", object: &schedulingv1beta1.PodGroup{}, client: client, again: groupsAgain,
		lw: fresh(groups.List, groups.Watch),
		missing: func(log logr.Logger) {
			log.V(2).Info("The API server has no podgroups.scheduling.k8s.io/v1beta1; gangs are declared by labels alone")
		},
		view: func(obj any) (*view.Group, bool) {
			o, ok := obj.(*schedulingv1beta1.PodGroup)
			if !ok {
				return nil, false
			}
			g := &view.Group{Namespace: o.Namespace, Name: o.Name}
			if gang := o.Spec.SchedulingPolicy.Gang; gang != nil {
				g.MinCount = gang.MinCount
			}
			return g, true
		},
		same:    func(a, b *view.Group) bool { return *a == *b },
		observe: to.ObserveGroup, forget: to.ForgetGroup,
	}
}
