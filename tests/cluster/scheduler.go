package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"

	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// schedulerConfig is what users are given to run their scheduler with.
func (p paths) schedulerConfig() string {
	return filepath.Join(p.root, "manifests", "scheduler", "kube-scheduler-config.yaml")
}

// schedulerFile is that with this cluster's addresses.
func (p paths) schedulerFile() string { return p.conf("kube-scheduler.yaml") }

// scheduler runs the stock kube-scheduler with the configuration that Tranche
// ships; only addresses and certificates are this cluster's.
func (c *Cluster) scheduler() (process, error) {
	file := c.paths.schedulerFile()
	shipped, err := os.ReadFile(c.paths.schedulerConfig())
	if err != nil {
		return process{}, fmt.Errorf("the shipped scheduler configuration: %w", err)
	}
	config, err := c.localSchedulerConfig(shipped)
	if err != nil {
		return process{}, fmt.Errorf("%s: %w", c.paths.schedulerConfig(), err)
	}
	if err := writeFile(file, config, 0o644); err != nil {
		return process{}, err
	}
	kubeconfig := c.paths.kubeconfig(userScheduler)
	return process{
		Name:  Scheduler,
		Args:  append([]string{c.paths.bin("kube-scheduler"), "--config=" + file}, append(c.serving(portScheduler, kubeconfig), c.featureGates()...)...),
		Files: []string{file, kubeconfig, c.paths.crt(userScheduler), c.paths.crt(authorityName)},
	}, nil
}

// optionalLine is a line of a file in YAML that people may take the # off.
var optionalLine = regexp.MustCompile(`(?m)^#( +)`)

// OptionalLines is the shipped scheduler configuration with what is optional in it.
// Comments have a # that is indented, or are at its very beginning.
func OptionalLines(shipped []byte) []byte {
	at := bytes.Index(shipped, []byte("\nextenders:"))
	return append(bytes.Clone(shipped[:at]), optionalLine.ReplaceAll(shipped[at:], []byte("$1"))...)
}

// localSchedulerConfig fills in where things are here.
func (c *Cluster) localSchedulerConfig(shipped []byte) ([]byte, error) {
	if c.options.RateCPUOnlyPods {
		shipped = OptionalLines(shipped)
	}
	var config schedulerv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(shipped, &config); err != nil {
		return nil, err
	}
	config.ClientConnection.Kubeconfig = c.paths.kubeconfig(userScheduler)
	if qps := c.options.SchedulerQPS; qps > 0 {
		config.ClientConnection.QPS, config.ClientConnection.Burst = qps, int32(2*qps)
	}
	// One scheduler: an election would only delay its restart.
	elect := false
	config.LeaderElection.LeaderElect = &elect
	if len(config.Extenders) == 0 {
		return nil, errors.New("it has no extender")
	}
	for i := range config.Extenders {
		e := &config.Extenders[i]
		at, err := url.Parse(e.URLPrefix)
		if err != nil {
			return nil, fmt.Errorf("urlPrefix: %w", err)
		}
		at.Scheme, at.Host = "https", c.ports.address(portExtender)
		e.URLPrefix, e.EnableHTTPS = at.String(), true
		e.TLSConfig = &schedulerv1.ExtenderTLSConfig{
			CAFile: c.paths.crt(authorityName), CertFile: c.paths.crt(userScheduler), KeyFile: c.paths.key(userScheduler),
		}
	}
	return yaml.Marshal(config)
}
