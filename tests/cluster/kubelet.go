package cluster

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// RealNodeName is the node with the real kubelet.
const RealNodeName = "tranche-real-0"

// kubeletConfig differs from a server's only where the machine must be left
// alone or has nothing to offer.
func (c *Cluster) kubeletConfig() kubeletv1.KubeletConfiguration {
	yes, no := true, false
	health, never, least := int32(c.ports[portKubeletHealth]), int32(100), int32(99)
	noResolver := ""
	return kubeletv1.KubeletConfiguration{
		TypeMeta:          metav1.TypeMeta{APIVersion: kubeletv1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Address:           c.network.node().String(),
		Port:              int32(c.ports[portKubelet]),
		HealthzPort:       &health,
		TLSCertFile:       c.paths.crt(userKubelet),
		TLSPrivateKeyFile: c.paths.key(userKubelet),
		Authentication: kubeletv1.KubeletAuthentication{
			Anonymous: kubeletv1.KubeletAnonymousAuthentication{Enabled: &no},
			Webhook:   kubeletv1.KubeletWebhookAuthentication{Enabled: &yes},
			X509:      kubeletv1.KubeletX509Authentication{ClientCAFile: c.paths.crt(authorityName)},
		},
		Authorization:            kubeletv1.KubeletAuthorization{Mode: kubeletv1.KubeletAuthorizationModeWebhook},
		ContainerRuntimeEndpoint: "unix://" + containerdAddress,
		CgroupDriver:             "cgroupfs",
		CgroupRoot:               "/" + c.paths.cgroup(),
		CgroupsPerQOS:            &yes,
		EnforceNodeAllocatable:   []string{"pods"},
		FailCgroupV1:             &no,
		FailSwapOn:               &no,
		MaxPods:                  250,
		// The machine's disk is not the node's to tidy up: no evictions, no
		// removal of images that nobody could pull again.
		EvictionHard:                map[string]string{"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
		ImageGCHighThresholdPercent: &never,
		ImageGCLowThresholdPercent:  &least,
		// Half of the tests wait for what the kubelet reports.
		NodeStatusUpdateFrequency: metav1.Duration{Duration: 3 * time.Second},
		MakeIPTablesUtilChains:    &no,
		ResolverConfig:            &noResolver,
		// Nothing answers there; without it every pod gets a warning event.
		ClusterDNS:      []string{"10.96.0.10"},
		ClusterDomain:   "cluster.local",
		VolumePluginDir: kubeletRoot + "/volume-plugins",
	}
}

// kubelet is the real one.
func (c *Cluster) kubelet() (process, error) {
	config, err := yaml.Marshal(c.kubeletConfig())
	if err != nil {
		return process{}, fmt.Errorf("kubelet's configuration: %w", err)
	}
	file, kubeconfig := c.paths.conf("kubelet.yaml"), c.paths.kubeconfig(userKubelet)
	if err := writeFile(file, config, 0o644); err != nil {
		return process{}, err
	}
	return process{
		Name: Kubelet,
		Args: []string{
			c.paths.bin("kubelet"),
			"--config=" + file, "--kubeconfig=" + kubeconfig, "--root-dir=" + kubeletRoot, "--cert-dir=" + kubeletRoot + "/pki",
			"--hostname-override=" + RealNodeName, "--node-ip=" + c.network.node().String(), "--v=2",
		},
		Namespace: kubeletNamespace,
		Files:     []string{file, kubeconfig, c.paths.crt(userKubelet), c.paths.crt(authorityName)},
	}, nil
}
