package watch

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// failing is an API server that has lost its etcd.
func failing(clienttesting.Action) (bool, runtime.Object, error) {
	return true, nil, errors.New("etcd has no leader")
}
