package cluster

import (
	"errors"
	"fmt"
	"os"
)

// Cluster is a local cluster that is up, or that was.
type Cluster struct {
	options Options
	paths   paths
	ports   ports
	network network
	super   supervisor
	say     *progress
	clients clients
}

// Open returns the cluster in dir (the checkout's .cluster if empty) as the
// last Up left it. It starts nothing.
func Open(dir string) (*Cluster, error) {
	p, err := findPaths(dir)
	if err != nil {
		return nil, err
	}
	c := newCluster(p, Options{})
	if err := readJSON(p.in("options.json"), &c.options); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("no cluster in %s; make cluster-up starts one", p.dir)
		}
		return nil, err
	}
	if err := readJSON(p.in("ports.json"), &c.ports); err != nil {
		return nil, err
	}
	if c.options.RealNode {
		if err := readJSON(p.in("network.json"), &c.network); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func newCluster(p paths, o Options) *Cluster {
	return &Cluster{options: o, paths: p, super: supervisor{p}, say: &progress{out: o.out()}}
}

// Dir is the cluster's directory.
func (c *Cluster) Dir() string { return c.paths.dir }

// Kubeconfig is the administrator's.
func (c *Cluster) Kubeconfig() string { return c.paths.adminKubeconfig() }

// HasRealNode says whether there is a real kubelet.
func (c *Cluster) HasRealNode() bool { return c.options.RealNode }

// LogFile is where a program's output goes.
func (c *Cluster) LogFile(name string) string { return c.paths.log(name) }

// Programs are the names of all programs that were ever started, sorted.
func (c *Cluster) Programs() []string { return c.super.names() }
