package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"text/template"
)

// The node's programs find each other at the paths of any node; these exist
// only in its mount namespace.
const (
	containerdAddress = "/run/containerd/containerd.sock"
	cdiDir            = "/run/cdi"
	kubeletRoot       = "/var/lib/kubelet"
	statePath         = "/var/lib/tranche"
)

var containerdConfig = template.Must(template.New("containerd").Funcs(template.FuncMap{"quote": quoteTOML}).Parse(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# The optional-programs folder is /opt/containerd, which would stay behind.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = {{quote .Address}}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {{quote .Snapshotter}}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = {{quote .PauseImage}}

[plugins.'io.containerd.cri.v1.runtime']
  # Containers' scores may not go below containerd's own where that is not
  # fully privileged.
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = [{{quote .CDIDir}}]
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [{{quote .CNIBin}}]
  conf_dir = {{quote .CNIConf}}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = {{quote .Snapshotter}}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = {{quote .Runc}}
  SystemdCgroup = false
`))

// quoteTOML writes a basic string; TOML and JSON escape alike.
func quoteTOML(s string) (string, error) {
	b, err := json.Marshal(s)
	return string(b), err
}

// containerd runs pods' containers.
func (c *Cluster) containerd() (process, error) {
	var config bytes.Buffer
	err := containerdConfig.Execute(&config, map[string]string{
		"Address": containerdAddress, "PauseImage": PauseImage, "CDIDir": cdiDir, "Snapshotter": snapshotter(c.paths.dir),
		"CNIBin": c.paths.bin("cni"), "CNIConf": c.paths.conf("cni"), "Runc": c.paths.bin("runc"),
	})
	if err != nil {
		return process{}, fmt.Errorf("containerd's configuration: %w", err)
	}
	file := c.paths.conf("containerd.toml")
	if err := writeFile(file, config.Bytes(), 0o644); err != nil {
		return process{}, err
	}
	if err := c.writeCNI(); err != nil {
		return process{}, err
	}
	return process{
		Name: Containerd, Args: []string{c.paths.bin("containerd"), "--config=" + file},
		Namespace: nodeNamespace, Files: []string{file},
	}, nil
}

// writeCNI gives pods an address on the node's bridge. The bridge plugin is not
// told to be a gateway: it would switch on the machine's packet forwarding.
func (c *Cluster) writeCNI() error {
	config := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "tranche-local",
		"plugins": []map[string]any{{
			"type":   "bridge",
			"bridge": c.network.Bridge,
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": c.paths.node("addresses"),
				"ranges":  [][]map[string]string{{{"subnet": c.network.Subnet.String(), "gateway": c.network.node().String()}}},
				"routes":  []map[string]string{{"dst": "0.0.0.0/0"}},
			},
		}},
	}
	if err := makeFolder(c.paths.conf("cni")); err != nil {
		return err
	}
	return writeJSON(c.paths.conf("cni")+"/10-tranche.conflist", config)
}
