package cluster

import "k8s.io/client-go/rest"

// The programs of Tranche serve /metrics, /healthz and /readyz over plain HTTP,
// on this machine only.

// ExtenderOpsURL is where tranche-extender does so, and serves /v1/state:
// http://127.0.0.1:PORT, without a path.
func (c *Cluster) ExtenderOpsURL() string { return "http://" + c.ports.address(portExtenderMetrics) }

// WebhookOpsURL is where tranche-webhook serves /metrics.
func (c *Cluster) WebhookOpsURL() string { return "http://" + c.ports.address(portWebhookMetrics) }

// NodePluginOpsURL is where tranche-nodeplugin serves all three.
func (c *Cluster) NodePluginOpsURL() string {
	return "http://" + c.ports.address(portNodePluginMetrics)
}

// OpsURL is where a program serves /metrics and, if it was asked to, /debug/pprof:
// those of Kubernetes to the administrator alone. Empty if it does not.
func (c *Cluster) OpsURL(program string) string {
	switch program {
	case Extender:
		return c.ExtenderOpsURL()
	case Webhook:
		return c.WebhookOpsURL()
	case Scheduler:
		return "https://" + c.ports.address(portScheduler)
	case APIServer:
		return c.server()
	default:
		return ""
	}
}

// SchedulerConfig is the file that kube-scheduler is configured with. It says how
// to call the extender.
func (c *Cluster) SchedulerConfig() string { return c.paths.schedulerFile() }

// Etcd is where etcd serves its clients, and what they show to it. Whoever uses it
// goes past the API server.
func (c *Cluster) Etcd() (url string, tls rest.TLSClientConfig) {
	return "https://" + c.ports.address(portEtcd), rest.TLSClientConfig{
		CAFile: c.paths.crt(authorityName), CertFile: c.paths.crt(certEtcdClient), KeyFile: c.paths.key(certEtcdClient),
	}
}
