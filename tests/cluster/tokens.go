package cluster

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is how long a program's token lasts. A kubelet would renew it
// every hour; here only the next Up does.
const tokenSeconds = 30 * 24 * 3600

// writeToken gives a program of Tranche's the token of its service account, as
// the kubelet would give it to its pod, in a kubeconfig. With a node, the token
// is bound to it: the API server then knows which node's plugin is asking.
func (c *Cluster) writeToken(ctx context.Context, account, node string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if node != "" {
		n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("token of %s: %w", account, err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: n.Name, UID: n.UID,
		}
	}
	token, err := client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of %s: %w", account, err)
	}
	file := c.paths.conf(account + ".token")
	if err := writeFile(file, []byte(token.Status.Token), 0o600); err != nil {
		return err
	}
	return c.writeKubeconfig(c.paths.kubeconfig(account), &api.AuthInfo{TokenFile: file}, false)
}
