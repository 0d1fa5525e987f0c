package nodeplugin

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Informed says whether the API server's cache has the pod.
func (p *Plugin) Informed(ctx context.Context, uid types.UID) bool {
	list, err := p.informer.Pods(ctx)
	if err != nil {
		return false
	}
	for _, pod := range list.Pods {
		if pod.UID == uid {
			return true
		}
	}
	return false
}
