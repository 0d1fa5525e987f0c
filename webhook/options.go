// Package webhook holds the settings of tranche-webhook, the admission webhook:
// it turns what users write on their pods into what the scheduler and the
// kubelet count, and refuses what cannot work with a sentence that says what to
// write instead.
//
// What becomes of a pod is decided in packages mutate and validate, which are
// pure; package server carries the decisions to the API server.
package webhook

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Options are the settings of tranche-webhook.
type Options struct {
	// Kubeconfig is a file; empty: the service account of the pod we run in.
	Kubeconfig string
	// Namespace is where Tranche is installed. Its pods and kube-system's are
	// never touched.
	Namespace string
	// BindAddress is HOST:PORT for the API server's calls.
	BindAddress string
	// TLSMinVersion is a key of tlsVersions.
	TLSMinVersion string

	// SelfSigned: make and rotate certificates, kept in the Secret
	// CertSecretName of Namespace, which must exist, and put their CA into the
	// webhook configurations. Otherwise somebody else does all that and puts
	// tls.crt and tls.key into CertDir.
	SelfSigned     bool
	CertSecretName string
	// CertDir is read without SelfSigned. With it, the current certificate
	// (never the key) is written there; empty: a temporary directory.
	CertDir string
	// ServiceName and DNSNames are what a self-signed certificate is for.
	ServiceName string
	DNSNames    []string
	// WebhookConfiguration names both the mutating and the validating one.
	WebhookConfiguration string

	// MetricsBindAddress and HealthBindAddress are HOST:PORT for plain HTTP;
	// "0" serves none.
	MetricsBindAddress string
	HealthBindAddress  string

	// DefaultQueue is for pods whose namespace names no queue. If there is no
	// Queue of that name it is one without limits, which holds nobody back.
	DefaultQueue string
	// GangGate puts the scheduling gate contract.AdmissionGate on members of
	// gangs. Without it they are pending pods that the extender refuses until
	// their gang has places, which keeps kube-scheduler busy.
	GangGate bool
	// QueueGate puts the same gate on single pods where their Queue wants it.
	// Without it those with GPUs are pending pods that the extender refuses until
	// their queue admits them, and queues have no say about those without.
	QueueGate bool
	// RateCPUOnlyPods has kube-scheduler ask the extender which nodes suit pods
	// without GPUs; it takes an entry in kube-scheduler's configuration as well.
	RateCPUOnlyPods bool
	Resources       contract.Resources
}

// DefaultOptions are what the flags start from.
func DefaultOptions() *Options {
	return &Options{
		Namespace:            "tranche-system",
		BindAddress:          "0.0.0.0:9443",
		TLSMinVersion:        "VersionTLS13",
		SelfSigned:           true,
		CertSecretName:       "tranche-webhook-tls",
		ServiceName:          "tranche-webhook",
		WebhookConfiguration: "tranche",
		MetricsBindAddress:   "127.0.0.1:8081",
		HealthBindAddress:    "127.0.0.1:8082",
		DefaultQueue:         "default",
		GangGate:             true,
		QueueGate:            true,
		Resources:            contract.DefaultResources(),
	}
}

// AddFlags declares one flag per setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file; empty: the service account of the pod this runs in")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace that Tranche is installed in; its pods and kube-system's are never touched")
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "HOST:PORT to serve /mutate-pods and /validate-pods on, with TLS")
	fs.StringVar(&o.TLSMinVersion, "tls-min-version", o.TLSMinVersion, "lowest TLS version to accept: VersionTLS12 or VersionTLS13")
	fs.BoolVar(&o.SelfSigned, "self-signed", o.SelfSigned, "make and rotate certificates and put their CA into the webhook configurations; false: serve what is in --cert-dir, for instance from cert-manager")
	fs.StringVar(&o.CertSecretName, "cert-secret-name", o.CertSecretName, "Secret in --namespace that keeps the self-signed CA and certificate for all replicas; it must exist and may be empty")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "directory of tls.crt and tls.key, read again when they change; with --self-signed: where the current certificate, without its key, is written to (empty: a temporary directory)")
	fs.StringVar(&o.ServiceName, "service-name", o.ServiceName, "Service in --namespace that the API server calls; self-signed certificates are for its DNS names")
	fs.StringSliceVar(&o.DNSNames, "dns-names", o.DNSNames, "more DNS names for self-signed certificates, separated by commas")
	fs.StringVar(&o.WebhookConfiguration, "webhook-configuration", o.WebhookConfiguration, "name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration that get the self-signed CA")
	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress, "HOST:PORT to serve /metrics on, plain HTTP; 0: none")
	fs.StringVar(&o.HealthBindAddress, "health-bind-address", o.HealthBindAddress, "HOST:PORT to serve /healthz and /readyz on, plain HTTP; 0: none")
	fs.StringVar(&o.DefaultQueue, "default-queue", o.DefaultQueue, "queue of pods when neither they nor their owner nor their namespace name one; without a Queue of that name it is open to all")
	fs.BoolVar(&o.GangGate, "gang-gate", o.GangGate, "put the scheduling gate "+contract.AdmissionGate+" on members of gangs, which the extender lifts when it has places for the whole gang; false: they wait as pending pods")
	fs.BoolVar(&o.QueueGate, "queue-gate", o.QueueGate, "put the scheduling gate "+contract.AdmissionGate+" on single pods as their Queue wants it (spec.admission, status.open), which the extender lifts when it admits them; false: those that use GPUs wait as pending pods, and queues do not hold the others")
	fs.BoolVar(&o.RateCPUOnlyPods, "rate-cpu-only-pods", o.RateCPUOnlyPods, "put 0 of "+string(contract.CPUOnlyResource)+" on pods that ask for cpu and no GPU, so that kube-scheduler asks the extender which nodes suit them, if its configuration has the optional entry for that; the extender never holds them up")
	fs.StringVar((*string)(&o.Resources.Share), "share-resource", string(o.Resources.Share), "resource that counts shares of GPUs")
	fs.StringVar((*string)(&o.Resources.GPU), "gpu-resource", string(o.Resources.GPU), "resource that counts whole GPUs")
	fs.Int64Var((*int64)(&o.Resources.PerGPU), "shares-per-gpu", int64(o.Resources.PerGPU), "shares that one GPU is cut into; the same for all of Tranche's programs")
}

var tlsVersions = map[string]uint16{"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13}

// TLSVersion is TLSMinVersion as crypto/tls counts it.
func (o *Options) TLSVersion() uint16 { return tlsVersions[o.TLSMinVersion] }

// Validate reports every problem at once.
func (o *Options) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	name := func(flag, value string, check func(string) []string) {
		if wrong := check(value); len(wrong) > 0 {
			problem("--%s=%s: %s", flag, value, strings.Join(wrong, "; "))
		}
	}

	name("namespace", o.Namespace, validation.IsDNS1123Label)
	name("default-queue", o.DefaultQueue, validation.IsDNS1123Subdomain)
	name("default-queue", o.DefaultQueue, validation.IsValidLabelValue)
	if o.SelfSigned {
		name("cert-secret-name", o.CertSecretName, validation.IsDNS1123Subdomain)
		name("service-name", o.ServiceName, validation.IsDNS1035Label)
		name("webhook-configuration", o.WebhookConfiguration, validation.IsDNS1123Subdomain)
		for _, n := range o.DNSNames {
			name("dns-names", n, validation.IsDNS1123Subdomain)
			if net.ParseIP(n) != nil {
				problem("--dns-names=%s: an IP address cannot be certified; give a DNS name", n)
			}
		}
	} else if o.CertDir == "" {
		problem("--cert-dir is needed with --self-signed=false: it is where tls.crt and tls.key are")
	}

	if _, _, err := splitAddress(o.BindAddress); err != nil {
		problem("--bind-address=%s: %w", o.BindAddress, err)
	}
	for flag, address := range map[string]string{"metrics-bind-address": o.MetricsBindAddress, "health-bind-address": o.HealthBindAddress} {
		if address == "0" {
			continue
		}
		if _, _, err := splitAddress(address); err != nil {
			problem("--%s=%s: %w", flag, address, err)
		}
	}
	if o.TLSVersion() == 0 {
		problem("--tls-min-version=%s: write VersionTLS12 or VersionTLS13", o.TLSMinVersion)
	}

	for flag, resource := range map[string]corev1.ResourceName{"share-resource": o.Resources.Share, "gpu-resource": o.Resources.GPU} {
		name(flag, string(resource), validation.IsQualifiedName)
		if !strings.Contains(string(resource), "/") || strings.Contains(string(resource), "kubernetes.io/") {
			problem("--%s=%s: an extended resource is named DOMAIN/NAME, and DOMAIN is not kubernetes.io", flag, resource)
		}
	}
	if o.Resources.Share == o.Resources.GPU {
		problem("--share-resource and --gpu-resource are both %s: they must differ", o.Resources.GPU)
	}
	if o.Resources.PerGPU < 1 || o.Resources.PerGPU > units.MaxSharesPerGPU {
		problem("--shares-per-gpu=%d: write 1 to %d", o.Resources.PerGPU, units.MaxSharesPerGPU)
	}
	// Maps above come in any order.
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// Listen is BindAddress taken apart.
func (o *Options) Listen() (host string, port int) {
	host, port, _ = splitAddress(o.BindAddress) // Validate has seen to it
	return host, port
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, errors.New("write HOST:PORT")
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, errors.New("the port is a number from 1 to 65535")
	}
	return host, port, nil
}

// CertificateNames are the DNS names of a self-signed certificate; the first is
// the one that the API server uses.
func (o *Options) CertificateNames() []string {
	inNamespace := o.ServiceName + "." + o.Namespace
	return append([]string{inNamespace + ".svc", inNamespace + ".svc.cluster.local", inNamespace, o.ServiceName}, o.DNSNames...)
}
