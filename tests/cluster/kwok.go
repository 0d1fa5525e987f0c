package cluster

import (
	_ "embed"
	"fmt"
	"time"
)

//go:embed stages.yaml
var stages []byte

// Simulated nodes carry this annotation: kwok plays these nodes and no other.
const (
	kwokAnnotation = "kwok.x-k8s.io/node"
	kwokFake       = "fake"
)

// A node's lease is renewed four times as often as it would end. kubeletLease is
// a kubelet's own.
const (
	kubeletLease = 40 * time.Second
	stillLease   = 4 * time.Hour
)

// kwok plays the kubelets of all simulated nodes.
func (c *Cluster) kwok() (process, error) {
	file, kubeconfig := c.paths.conf("kwok-stages.yaml"), c.paths.kubeconfig(userKwok)
	if err := writeFile(file, stages, 0o644); err != nil {
		return process{}, err
	}
	lease := kubeletLease
	if c.options.StillNodes {
		lease = stillLease
	}
	return process{
		Name: Kwok,
		Args: []string{
			c.paths.bin("kwok"),
			"--kubeconfig=" + kubeconfig, "--config=" + file, "--server-address=" + c.ports.address(portKwok),
			"--manage-nodes-with-annotation-selector=" + kwokAnnotation + "=" + kwokFake,
			fmt.Sprintf("--node-lease-duration-seconds=%d", int(lease.Seconds())),
			"--v=WARN",
		},
		Files: []string{file, kubeconfig, c.paths.crt(userKwok), c.paths.crt(authorityName)},
	}, nil
}
