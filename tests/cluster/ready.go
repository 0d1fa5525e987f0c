package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
)

// readyPatience is how long a program may take to become ready: the API server
// needs 5 s on two free cores, and tests are run on busy ones.
const readyPatience = 2 * time.Minute

// ensureReady makes p run and waits until it serves. The ports are those that
// it listens on.
func (c *Cluster) ensureReady(ctx context.Context, p process, listens ...port) error {
	if !c.super.running(p.Name) {
		if err := c.ports.checkFree(ctx, p.Name, listens...); err != nil {
			return err
		}
	}
	if _, err := c.super.ensure(ctx, p); err != nil {
		return err
	}
	return c.WaitReady(ctx, p.Name)
}

// WaitReady waits until a program serves, and fails early when it has ended.
func (c *Cluster) WaitReady(ctx context.Context, name string) error {
	check, err := c.readyCheck(name)
	if err != nil {
		return err
	}
	err = eventually(ctx, readyPatience, eagerly, func(ctx context.Context) error {
		err := check(ctx)
		if err != nil && !c.super.running(name) {
			return hopelessError{errors.New("it has ended")}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w; the end of %s:\n%s", name, err, c.LogFile(name), c.super.lastLog(name))
	}
	return nil
}

// readyCheck returns what each program itself offers for this purpose.
func (c *Cluster) readyCheck(name string) (func(context.Context) error, error) {
	plain := func(p port, path string) func(context.Context) error {
		return c.httpCheck("http://"+c.ports.address(p)+path, transport.TLSConfig{})
	}
	secure := func(p port, path string) func(context.Context) error {
		return c.httpCheck("https://"+c.ports.address(p)+path, transport.TLSConfig{
			CAFile: c.paths.crt(authorityName), CertFile: c.paths.crt(certEtcdClient), KeyFile: c.paths.key(certEtcdClient),
		})
	}
	switch name {
	case Etcd:
		return secure(portEtcd, "/readyz"), nil
	case APIServer:
		return secure(portAPIServer, "/readyz"), nil
	case ControllerManager:
		return secure(portControllerManager, "/healthz"), nil
	case Scheduler:
		return secure(portScheduler, "/readyz"), nil
	case Kwok:
		return plain(portKwok, "/healthz"), nil
	case Kubelet:
		healthy := plain(portKubeletHealth, "/healthz")
		return func(ctx context.Context) error { return errors.Join(healthy(ctx), c.kubeletKnowsPods(ctx)) }, nil
	case Containerd:
		return c.containerdHealth, nil
	case Extender:
		return plain(portExtenderMetrics, "/readyz"), nil
	case Webhook:
		return plain(portWebhookHealth, "/readyz"), nil
	case NodePlugin:
		return plain(portNodePluginMetrics, "/readyz"), nil
	case holder:
		return func(context.Context) error {
			if !c.super.running(holder) {
				return errors.New("it does not run")
			}
			return nil
		}, nil
	}
	return nil, fmt.Errorf("there is no program %q in a local cluster", name)
}

// kubeletKnowsPods fails while a kubelet that was just started has not yet heard
// of its pods from the API server: it is healthy then, but denies their logs.
func (c *Cluster) kubeletKnowsPods(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + RealNodeName})
	if err != nil {
		return nil
	}
	var known corev1.PodList
	b, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(RealNodeName).SubResource("proxy").Suffix("pods").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	if err != nil {
		return fmt.Errorf("ask the kubelet for its pods: %w", err)
	}
	for _, p := range pods.Items {
		if !slices.ContainsFunc(known.Items, func(k corev1.Pod) bool { return k.UID == p.UID }) && !podEnded(p) {
			return fmt.Errorf("the kubelet does not know pod %s/%s yet", p.Namespace, p.Name)
		}
	}
	return nil
}

func podEnded(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// httpCheck succeeds when a GET of url answers 200. Connections are not kept:
// one of a killed program would fail the first check of its successor.
func (c *Cluster) httpCheck(url string, certs transport.TLSConfig) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var config *tls.Config
		if certs.CAFile != "" {
			var err error
			if config, err = transport.TLSConfigFor(&transport.Config{TLS: certs}); err != nil {
				return err
			}
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
			return fmt.Errorf("%s answers %s: %s", url, resp.Status, body)
		}
		return nil
	}
}

// containerdSocket is inside the node's mount namespace, which can be looked
// into by way of any process there.
func (c *Cluster) containerdSocket() (string, error) {
	r, err := readRecord(c.paths.record(holder))
	if err != nil || !r.alive() {
		return "", errors.New("the real node is not running")
	}
	return filepath.Join("/proc", strconv.Itoa(r.PID), "root", containerdAddress), nil
}

func (c *Cluster) containerdHealth(ctx context.Context) error {
	socket, err := c.containerdSocket()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("containerd is %s", resp.GetStatus())
	}
	return nil
}
