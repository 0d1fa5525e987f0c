package kubelet

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// ForeignError says that another device plugin offers the whole-GPU resource on
// this node.
type ForeignError struct {
	Resource string
	// Devices are some of those that are not ours.
	Devices []string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("another device plugin offers %s on this node (its devices: %s): two plugins would give the same GPUs away twice. "+
		"Label the node nvidia.com/gpu.deploy.device-plugin=false if it is the GPU operator's, or keep the other plugin's DaemonSet off this node",
		e.Resource, strings.Join(e.Devices, ", "))
}

// offers tells which healthy devices of a resource the kubelet has been told of.
type offers interface {
	Offered(ctx context.Context, resource string) ([]string, error)
}

// CheckForeign returns a ForeignError if the kubelet has devices of the resource
// that no plugin of ours has ever offered on this node. Ours are <UUID>::0 of a
// GPU that was ours: known says which were, this process or an earlier one that
// was killed and whose devices the kubelet may not have dropped yet. NVIDIA's
// plugin offers <UUID>, or <UUID>::0 and <UUID>::1 and so on.
func CheckForeign(ctx context.Context, o offers, resource string, known func(contract.GPUUUID) bool) error {
	ids, err := o.Offered(ctx, resource)
	if err != nil {
		return err
	}
	const most = 3
	var foreign []string
	for _, s := range ids {
		id, err := contract.ParseDeviceID(s)
		if err == nil && id.Slice == 0 && known(id.GPU) {
			continue
		}
		foreign = append(foreign, s)
		if len(foreign) == most {
			break
		}
	}
	if len(foreign) > 0 {
		return &ForeignError{Resource: resource, Devices: foreign}
	}
	return nil
}
