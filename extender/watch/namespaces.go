package watch

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tranche-dev/tranche/extender/view"
)

// namespacesAgain is how soon it is noticed that we may read namespaces.
const namespacesAgain = 5 * time.Second

// namespaceKind are the namespaces. Every API server has them, but the roles of
// an earlier version of ours do not let us read them: pods must not wait for
// that.
func namespaceKind(client kubernetes.Interface, to Namespaces) *kind[*view.Namespace] {
	namespaces := client.CoreV1().Namespaces()
	return &kind[*view.Namespace]{
		name: "Namespace", object: &corev1.Namespace{}, client: client, again: namespacesAgain,
		lw:      fresh(namespaces.List, namespaces.Watch),
		missing: func(log logr.Logger) { log.Info("The API server has no namespaces") },
		view: func(obj any) (*view.Namespace, bool) {
			o, ok := obj.(*corev1.Namespace)
			if !ok {
				return nil, false
			}
			return &view.Namespace{Name: o.Name, Labels: o.Labels}, true
		},
		same:    (*view.Namespace).Same,
		observe: to.ObserveNamespace,
		forget:  func(ctx context.Context, _, name string) { to.ForgetNamespace(ctx, name) },
	}
}
