package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
)

// Source is a serving certificate that may change.
type Source interface {
	dynamiccertificates.CertKeyContentProvider
	// Run keeps it fresh until ctx ends.
	Run(ctx context.Context, workers int)
}

// TLS is a server's configuration that follows its files.
type TLS struct {
	serving    Source
	clientCA   *dynamiccertificates.DynamicFileCAContent
	controller *dynamiccertificates.DynamicServingCertificateController
}

// FromFiles returns the serving certificate of two PEM files, which are read
// again when they change.
func FromFiles(certFile, keyFile string) (Source, error) {
	// What is below starts goroutines before it finds out that this fails.
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	source, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return source, nil
}

// New returns a configuration that asks every client for a certificate of a CA
// in clientCAFile. serving must have a certificate already.
func New(serving Source, clientCAFile string) (*TLS, error) {
	if _, err := cert.CertsFromFile(clientCAFile); err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	clientCA, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", clientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequireAndVerifyClientCert,
		// An empty pool trusts nobody; none at all would mean the system's.
		ClientCAs: x509.NewCertPool(),
		// A resumed session would outlive the CA that vouched for it.
		SessionTicketsDisabled: true,
	}
	t := &TLS{serving: serving, clientCA: clientCA}
	t.controller = dynamiccertificates.NewDynamicServingCertificateController(base, clientCA, serving, nil, nil)
	clientCA.AddListener(t.controller)
	serving.AddListener(t.controller)
	if err := t.controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return t, nil
}

// Config is for a server's listener; each handshake gets the newest.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: t.controller.GetConfigForClient}
}

// Run follows the files until ctx ends.
func (t *TLS) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { t.serving.Run(ctx, 1) })
	running.Go(func() { t.clientCA.Run(ctx, 1) })
	running.Go(func() { t.controller.Run(1, ctx.Done()) })
	running.Wait()
}
