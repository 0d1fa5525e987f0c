package cluster

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
)

// The names of the cluster's programs, for Kill, Start and Restart.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
	Containerd        = "containerd"
	Kubelet           = "kubelet"
	Extender          = "tranche-extender"
	Webhook           = "tranche-webhook"
	NodePlugin        = "tranche-nodeplugin"
)

// firstServiceAddress is the API server's own in the range of services. Nothing
// routes it: no kube-proxy runs here, as no test needs services.
const (
	serviceRange        = "10.96.0.0/16"
	firstServiceAddress = "10.96.0.1"
)

func (c *Cluster) etcd() process {
	client, peer := "https://"+c.ports.address(portEtcd), "https://"+c.ports.address(portEtcdPeer)
	return process{
		Name: Etcd,
		Args: []string{
			c.paths.bin("etcd"),
			"--name=local", "--data-dir=" + c.paths.data("etcd"), "--log-level=warn",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=local=" + peer,
			// Whoever may write to etcd owns the cluster and, by way of pods, the
			// machine: other users must not reach it.
			"--cert-file=" + c.paths.crt(certServer), "--key-file=" + c.paths.key(certServer),
			"--client-cert-auth", "--trusted-ca-file=" + c.paths.crt(authorityName),
			"--peer-cert-file=" + c.paths.crt(certServer), "--peer-key-file=" + c.paths.key(certServer),
			"--peer-client-cert-auth", "--peer-trusted-ca-file=" + c.paths.crt(authorityName),
			// The data is worth nothing after a power cut. It survives kill -9.
			"--unsafe-no-fsync",
		},
		Files: []string{c.paths.crt(certServer), c.paths.crt(authorityName)},
	}
}

func (c *Cluster) apiServer() process {
	return process{
		Name: APIServer,
		Args: append([]string{
			c.paths.bin("kube-apiserver"),
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports[portAPIServer]),
			// Endpoints may not be loopback addresses, and nothing here uses them.
			"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
			"--etcd-servers=https://" + c.ports.address(portEtcd), "--etcd-cafile=" + c.paths.crt(authorityName),
			"--etcd-certfile=" + c.paths.crt(certEtcdClient), "--etcd-keyfile=" + c.paths.key(certEtcdClient),
			"--tls-cert-file=" + c.paths.crt(certServer), "--tls-private-key-file=" + c.paths.key(certServer),
			"--client-ca-file=" + c.paths.crt(authorityName),
			"--service-cluster-ip-range=" + serviceRange,
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + c.paths.key(serviceAccountKey), "--service-account-signing-key-file=" + c.paths.key(serviceAccountKey),
			"--kubelet-certificate-authority=" + c.paths.crt(authorityName),
			"--kubelet-client-certificate=" + c.paths.crt(certKubeletClient), "--kubelet-client-key=" + c.paths.key(certKubeletClient),
			"--kubelet-preferred-address-types=InternalIP",
			// As kubeadm does.
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		}, c.featureGates("--runtime-config=scheduling.k8s.io/v1beta1=true")...),
		Files: []string{c.paths.crt(certServer), c.paths.crt(authorityName), c.paths.key(serviceAccountKey), c.paths.crt(certKubeletClient)},
	}
}

func (c *Cluster) controllerManager() process {
	kubeconfig := c.paths.kubeconfig(userControllerManager)
	var nodes []string
	if c.options.StillNodes {
		nodes = []string{"--node-monitor-grace-period=" + stillLease.String()}
	}
	return process{
		Name: ControllerManager,
		Args: append([]string{
			c.paths.bin("kube-controller-manager"),
			"--kubeconfig=" + kubeconfig, "--use-service-account-credentials", "--leader-elect=false",
			"--service-account-private-key-file=" + c.paths.key(serviceAccountKey), "--root-ca-file=" + c.paths.crt(authorityName),
			// At 20 requests a second, its default, taking the taint off a thousand
			// new nodes would last minutes.
			"--kube-api-qps=500", "--kube-api-burst=1000",
			"--cluster-signing-cert-file=" + c.paths.crt(authorityName), "--cluster-signing-key-file=" + c.paths.key(authorityName),
		}, slices.Concat(nodes, c.serving(portControllerManager, kubeconfig), c.featureGates())...),
		Files: []string{kubeconfig, c.paths.crt(userControllerManager), c.paths.crt(authorityName), c.paths.key(serviceAccountKey)},
	}
}

// featureGates are the flags that all parts of the control plane need for
// native gangs, and more for one of them; none if they are off.
func (c *Cluster) featureGates(more ...string) []string {
	if !c.options.NativeGangs {
		return nil
	}
	return append([]string{"--feature-gates=GenericWorkload=true"}, more...)
}

// serving are the flags with which the controller manager and the scheduler
// serve health and, to the administrator, metrics.
func (c *Cluster) serving(p port, kubeconfig string) []string {
	return []string{
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports[p]),
		"--tls-cert-file=" + c.paths.crt(certServer), "--tls-private-key-file=" + c.paths.key(certServer),
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}
}

// startControlPlane starts etcd, then the API server, then the rest.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	for _, s := range []struct {
		process process
		ports   []port
	}{
		{c.etcd(), []port{portEtcd, portEtcdPeer}},
		{c.apiServer(), []port{portAPIServer}},
	} {
		if err := c.ensureReady(ctx, s.process, s.ports...); err != nil {
			return err
		}
	}
	if err := c.allowKubeletAccess(ctx); err != nil {
		return err
	}
	scheduler, err := c.scheduler()
	if err != nil {
		return err
	}
	return together(ctx,
		func(ctx context.Context) error {
			return c.ensureReady(ctx, c.controllerManager(), portControllerManager)
		},
		func(ctx context.Context) error { return c.ensureReady(ctx, scheduler, portScheduler) },
	)
}

// allowKubeletAccess lets the API server read logs and run commands in pods.
func (c *Cluster) allowKubeletAccess(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	const name = "tranche-local:kubelet-client"
	_, err = client.RbacV1().ClusterRoleBindings().Apply(ctx, rbacv1ac.ClusterRoleBinding(name).
		WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName("system:kubelet-api-admin")).
		WithSubjects(rbacv1ac.Subject().WithAPIGroup(rbacv1.GroupName).WithKind(rbacv1.UserKind).WithName(kubeletClientUser)),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("allow the API server to call the kubelet: %w", err)
	}
	return nil
}
