package cluster

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// server is where the API server listens.
func (c *Cluster) server() string { return "https://" + c.ports.address(portAPIServer) }

// writeKubeconfigs writes one for each of the cluster's own programs, with
// references to the certificate files, and the administrator's, which stands
// by itself so that it can be copied.
func (c *Cluster) writeKubeconfigs() error {
	users := []string{userControllerManager, userScheduler, userKwok}
	if c.options.RealNode {
		users = append(users, userKubelet)
	}
	for _, u := range users {
		err := c.writeKubeconfig(c.paths.kubeconfig(u), &api.AuthInfo{
			ClientCertificate: c.paths.crt(u), ClientKey: c.paths.key(u),
		}, false)
		if err != nil {
			return err
		}
	}
	return c.writeKubeconfig(c.paths.adminKubeconfig(), &api.AuthInfo{
		ClientCertificate: c.paths.crt(userAdmin), ClientKey: c.paths.key(userAdmin),
	}, true)
}

func (c *Cluster) writeKubeconfig(file string, user *api.AuthInfo, standalone bool) error {
	const name = "tranche-local"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: c.server(), CertificateAuthority: c.paths.crt(authorityName)}
	config.AuthInfos[name] = user
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if standalone {
		if err := api.FlattenConfig(config); err != nil {
			return fmt.Errorf("kubeconfig %s: %w", file, err)
		}
	}
	b, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return writeFile(file, b, 0o600)
}
