package cluster

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// fieldManager owns what this package applies.
const fieldManager = "tranche-local-cluster"

// clients are made once; all of them share connections.
type clients struct {
	mu      sync.Mutex
	config  *rest.Config
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// RESTConfig is the administrator's access, without a client-side rate limit.
// The caller may change the copy.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if c.clients.config == nil {
		config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		if err != nil {
			return nil, fmt.Errorf("access to the cluster: %w", err)
		}
		config.QPS = -1
		c.clients.config = config
	}
	return rest.CopyConfig(c.clients.config), nil
}

// Client is the administrator's typed client.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if c.clients.typed == nil {
		// A third of the time with thousands of nodes goes into JSON.
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		if c.clients.typed, err = kubernetes.NewForConfig(config); err != nil {
			return nil, fmt.Errorf("access to the cluster: %w", err)
		}
	}
	return c.clients.typed, nil
}

// Dynamic is the administrator's client for objects of any kind.
func (c *Cluster) Dynamic() (dynamic.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if c.clients.dynamic == nil {
		if c.clients.dynamic, err = dynamic.NewForConfig(config); err != nil {
			return nil, fmt.Errorf("access to the cluster: %w", err)
		}
	}
	return c.clients.dynamic, nil
}

// ClientAs is a client of somebody else, by impersonation: the API server
// treats it as that user in every respect.
func (c *Cluster) ClientAs(user string, groups ...string) (kubernetes.Interface, error) {
	return c.clientAs(rest.ImpersonationConfig{UserName: user, Groups: append([]string{"system:authenticated"}, groups...)})
}

// NodePluginClient is a client with the rights of the node plugin of one node:
// its service account, with a token bound to that node.
func (c *Cluster) NodePluginClient(node string) (kubernetes.Interface, error) {
	return c.clientAs(nodePluginOf(node))
}

// nodeNameExtra is where the API server puts the node of a token that is bound
// to one.
const nodeNameExtra = "authentication.kubernetes.io/node-name"

func nodePluginOf(node string) rest.ImpersonationConfig {
	who := rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + systemNamespace + ":" + NodePlugin,
		Groups:   []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + systemNamespace},
	}
	if node != "" {
		who.Extra = map[string][]string{nodeNameExtra: {node}}
	}
	return who
}

func (c *Cluster) clientAs(who rest.ImpersonationConfig) (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.Impersonate = who
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("access to the cluster as %s: %w", who.UserName, err)
	}
	return client, nil
}

// NodeLogs returns what a container of a pod on the real node has printed. It
// goes the way of `kubectl logs`: API server, kubelet, the runtime's log file.
func (c *Cluster) NodeLogs(ctx context.Context, namespace, pod, container string) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	b, err := client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("logs of %s/%s: %w", namespace, pod, err)
	}
	return string(b), nil
}
