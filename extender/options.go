package extender

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// Options are the settings of tranche-extender. Every field is the flag of the
// same name.
type Options struct {
	// Kubeconfig is a file; empty: the service account of the pod.
	Kubeconfig string
	// Namespace has the lease, the Secret and the Service.
	Namespace string

	BindAddress, MetricsBindAddress string
	Profiling                       bool

	// TLSCertFile and TLSPrivateKeyFile come together, and exclude
	// TLSSecretName.
	TLSCertFile, TLSPrivateKeyFile string
	TLSSecretName                  string
	// ServiceName and DNSNames go into the certificate of TLSSecretName.
	ServiceName        string
	DNSNames           []string
	ClientCAFile       string
	AllowedClientNames []string

	LeaderElect bool
	// LeaderElectIdentity must be different for any two processes that may run
	// at the same time. Empty: the host's name and a random part. The pod's
	// name lets a container that was restarted lead again at once.
	LeaderElectIdentity string
	// LeaseDuration > RenewDeadline > RetryPeriod × 1.2.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	// HoldTimeout is how long shares are kept for a pod from Filter to Bind.
	HoldTimeout time.Duration
	// BindTimeout bounds one API call of a bind. Twice that must be less than
	// the scheduler's httpTimeout, or it gives up before it gets the reason.
	BindTimeout time.Duration
	// ShutdownTimeout bounds how long calls may go on after SIGTERM.
	ShutdownTimeout time.Duration
	Placement       string

	KubeAPIQPS   float32
	KubeAPIBurst int
	// EventQPS and RetryQPS bound events and wake-up patches per second.
	EventQPS, RetryQPS float32

	// Queues says whether queues divide the GPUs. Without, everybody takes what
	// is free, and the gates of single pods that wait are lifted.
	Queues bool
	// DefaultQueue is the queue of pods that name none, as the webhooks have it.
	// Empty: they are in none.
	DefaultQueue string
	// Reclaim says whether pods are evicted for those that are entitled to their
	// GPUs. EvictionsInFlight bounds how many may be on their way out for that.
	Reclaim           bool
	EvictionsInFlight int
	// ReservationDelay is how long a gang that is entitled to its places must
	// have waited before what becomes free is put by for it, 0: that is never
	// done; ReservationTimeout, for how long.
	ReservationDelay, ReservationTimeout time.Duration

	// Gangs says whether members of gangs start together. Without, the gates of
	// those that wait are lifted, and they are placed one by one.
	Gangs bool
	// Nominate says whether members are nominated to their nodes before the
	// scheduler gets them.
	Nominate bool
	// GangBindTimeout is how long a member's bind waits for the other members.
	// With two calls of BindTimeout after it, it must be less than the
	// scheduler's httpTimeout.
	GangBindTimeout time.Duration
	// GangHoldTimeout, more than GangBindTimeout, is how long a gang keeps its
	// places while the scheduler makes no progress with it.
	GangHoldTimeout time.Duration
	// GangStalenessGracePeriod is for gangs that do not say themselves how long
	// they may go on below their minimum; 0: for ever.
	GangStalenessGracePeriod time.Duration
	// AdmissionQPS bounds the requests per second that hand admitted pods to
	// the scheduler: at most two for each.
	AdmissionQPS float32

	ShareResource, GPUResource string
	SharesPerGPU               int64
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	res := contract.DefaultResources()
	return &Options{
		Namespace:          "tranche-system",
		BindAddress:        "0.0.0.0:8443",
		MetricsBindAddress: "127.0.0.1:8080",
		ServiceName:        leaseName,
		AllowedClientNames: []string{"system:kube-scheduler"},
		LeaderElect:        true,
		LeaseDuration:      15 * time.Second,
		RenewDeadline:      10 * time.Second,
		RetryPeriod:        2 * time.Second,
		HoldTimeout:        15 * time.Second,
		BindTimeout:        2 * time.Second,
		ShutdownTimeout:    27 * time.Second,
		Placement:          string(contract.PlacementLeastWaste),
		KubeAPIQPS:         500,
		KubeAPIBurst:       1000,
		EventQPS:           100,
		RetryQPS:           200,
		Queues:             true,
		DefaultQueue:       "default",
		Reclaim:            true,
		EvictionsInFlight:  64,
		ReservationDelay:   2 * time.Minute,
		ReservationTimeout: 30 * time.Minute,
		Gangs:              true,
		Nominate:           true,
		GangBindTimeout:    20 * time.Second,
		GangHoldTimeout:    time.Minute,
		AdmissionQPS:       500,
		ShareResource:      string(res.Share),
		GPUResource:        string(res.GPU),
		SharesPerGPU:       int64(res.PerGPU),
	}
}

// AddFlags implements program.Options.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file; empty: the pod's service account")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace of the lease, the certificate's Secret and the Service")
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "address and port of HTTPS for kube-scheduler")
	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress, "address and port of plain HTTP: /metrics, /healthz, /readyz, /v1/state")
	fs.BoolVar(&o.Profiling, "profiling", o.Profiling, "serve /debug/pprof beside the metrics")

	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "PEM file with the serving certificate; read again when it changes")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "PEM file with the serving certificate's key")
	fs.StringVar(&o.TLSSecretName, "tls-secret-name", o.TLSSecretName, "instead of files: Secret in which the extender itself keeps a CA (ca.crt, for kube-scheduler) and a serving certificate that it renews")
	fs.StringVar(&o.ServiceName, "service-name", o.ServiceName, "Service whose names go into the certificate of --tls-secret-name")
	fs.StringSliceVar(&o.DNSNames, "dns-names", o.DNSNames, "more names for the certificate of --tls-secret-name, separated by commas")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "PEM file with the CA of client certificates; read again when it changes")
	fs.StringSliceVar(&o.AllowedClientNames, "allowed-client-names", o.AllowedClientNames, "common names of the client certificates that may call, separated by commas")

	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "answer only while holding the lease; switch off only if there is one replica for certain")
	fs.StringVar(&o.LeaderElectIdentity, "leader-elect-identity", o.LeaderElectIdentity, "name of this process in the lease, different for each replica, such as the pod's name; empty: the host's name and a random part")
	fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration, "how long a lease holds without being renewed")
	fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline, "how long a leader tries to renew before it ends")
	fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod, "time between two tries to get or renew the lease")

	fs.DurationVar(&o.HoldTimeout, "hold-timeout", o.HoldTimeout, "how long GPU shares are kept for a pod between Filter and Bind")
	fs.DurationVar(&o.BindTimeout, "bind-timeout", o.BindTimeout, "limit of each of the at most two API calls of a bind")
	fs.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", o.ShutdownTimeout, "how long calls may go on after SIGTERM; more than gang-bind-timeout and twice bind-timeout, and less than the pod's grace period")
	fs.StringVar(&o.Placement, "placement", o.Placement, "least-waste, binpack or spread, for pods without a wish of their own")

	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS, "requests per second to the API server")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, "requests to the API server that may be made at once")
	fs.Float32Var(&o.EventQPS, "event-qps", o.EventQPS, "events per second")
	fs.Float32Var(&o.RetryQPS, "retry-qps", o.RetryQPS, "waiting pods per second that the scheduler is made to try again")

	fs.BoolVar(&o.Queues, "queues", o.Queues, "let Queues divide the GPUs; when off, everybody takes what is free, and single pods that wait for their queue are let go")
	fs.StringVar(&o.DefaultQueue, "default-queue", o.DefaultQueue, "queue of pods that name none, the same as the webhooks' flag; empty: they are in none")
	fs.BoolVar(&o.Reclaim, "reclaim", o.Reclaim, "evict pods of queues that use more than their fair share for those that are entitled to it, and pods of low priority for those of a higher one in the same queue")
	fs.IntVar(&o.EvictionsInFlight, "evictions-in-flight", o.EvictionsInFlight, "how many pods may be on their way out for others at a time; a gang that needs more victims than that is not helped")
	fs.DurationVar(&o.ReservationDelay, "reservation-delay", o.ReservationDelay, "how long a gang that is within its queue's share waits before GPUs that become free are put by for it, one gang at a time for each queue at the top; 0: never")
	fs.DurationVar(&o.ReservationTimeout, "reservation-timeout", o.ReservationTimeout, "for how long GPUs are put by for a gang that has waited long; afterwards it takes its turn like any other for as long")

	fs.BoolVar(&o.Gangs, "gangs", o.Gangs, "start the members of a gang together or not at all; when off, each takes its turn alone")
	fs.BoolVar(&o.Nominate, "nominate", o.Nominate, "nominate members of gangs to their nodes, so that kube-scheduler keeps other pods from the cpu and memory meant for them")
	fs.DurationVar(&o.GangBindTimeout, "gang-bind-timeout", o.GangBindTimeout, "how long the bind of a member waits for the rest of its gang; with twice --bind-timeout it must stay below the httpTimeout of kube-scheduler's extender configuration")
	fs.DurationVar(&o.GangHoldTimeout, "gang-hold-timeout", o.GangHoldTimeout, "how long a gang keeps its places while kube-scheduler does not bind it; more than --gang-bind-timeout")
	fs.DurationVar(&o.GangStalenessGracePeriod, "gang-staleness-grace-period", o.GangStalenessGracePeriod, "how long a started gang of disruption mode All may have too few members before the rest is evicted, if its Gang object does not say; 0: for ever")
	fs.Float32Var(&o.AdmissionQPS, "admission-qps", o.AdmissionQPS, "requests per second that hand admitted pods, single ones and members of gangs, to kube-scheduler, two for each")

	fs.StringVar(&o.ShareResource, "share-resource", o.ShareResource, "resource that counts shares of GPUs")
	fs.StringVar(&o.GPUResource, "gpu-resource", o.GPUResource, "resource that counts whole GPUs")
	fs.Int64Var(&o.SharesPerGPU, "shares-per-gpu", o.SharesPerGPU, "shares that one GPU is cut into; the node plugins must have the same")
}

// Validate implements program.Options.
func (o *Options) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	for flag, address := range map[string]string{"bind-address": o.BindAddress, "metrics-bind-address": o.MetricsBindAddress} {
		_, _, err := net.SplitHostPort(address)
		check(err == nil, "--%s: %q; write an address and a port, such as 0.0.0.0:8443", flag, address)
	}
	check(len(validation.IsDNS1123Label(o.Namespace)) == 0, "--namespace: %q is not a namespace's name", o.Namespace)
	check((o.TLSCertFile == "") == (o.TLSPrivateKeyFile == ""), "--tls-cert-file and --tls-private-key-file must be given together")
	check((o.TLSCertFile == "") != (o.TLSSecretName == ""), "give either --tls-cert-file with --tls-private-key-file, or --tls-secret-name")
	check(o.ClientCAFile != "", "--client-ca-file is required: without it nobody could call")
	check(len(o.AllowedClientNames) > 0, "--allowed-client-names must name who may call, normally system:kube-scheduler")
	check(o.RetryPeriod > 0 && o.RenewDeadline > o.RetryPeriod*12/10 && o.LeaseDuration > o.RenewDeadline,
		"--leader-elect-lease-duration (%v) must be more than --leader-elect-renew-deadline (%v), and that more than 1.2 times --leader-elect-retry-period (%v)",
		o.LeaseDuration, o.RenewDeadline, o.RetryPeriod)
	check(o.HoldTimeout >= time.Second, "--hold-timeout: %v; write at least 1s", o.HoldTimeout)
	check(o.BindTimeout >= time.Second, "--bind-timeout: %v; write at least 1s", o.BindTimeout)
	check(o.ShutdownTimeout > 0, "--shutdown-timeout: %v; write a time above 0", o.ShutdownTimeout)
	check(slices.Contains(contract.Placements(), contract.Placement(o.Placement)), "--placement: %q; write %s", o.Placement, contract.PlacementWords)
	check(o.KubeAPIQPS > 0 && o.KubeAPIBurst > 0, "--kube-api-qps and --kube-api-burst must be above 0")
	check(o.EventQPS > 0 && o.RetryQPS > 0, "--event-qps and --retry-qps must be above 0")
	check(o.DefaultQueue == "" || len(validation.IsDNS1123Subdomain(o.DefaultQueue))+len(validation.IsValidLabelValue(o.DefaultQueue)) == 0, "--default-queue: %q is not a queue's name", o.DefaultQueue)
	check(o.EvictionsInFlight > 0, "--evictions-in-flight: %d; write at least 1, or --reclaim=false", o.EvictionsInFlight)
	check(o.ReservationDelay >= 0, "--reservation-delay: %v; write 0 or a time above it", o.ReservationDelay)
	check(o.ReservationTimeout > 0, "--reservation-timeout: %v; write a time above 0", o.ReservationTimeout)
	check(o.GangBindTimeout >= time.Second, "--gang-bind-timeout: %v; write at least 1s", o.GangBindTimeout)
	check(o.GangHoldTimeout > o.GangBindTimeout, "--gang-hold-timeout (%v) must be more than --gang-bind-timeout (%v)", o.GangHoldTimeout, o.GangBindTimeout)
	check(o.GangStalenessGracePeriod >= 0, "--gang-staleness-grace-period: %v; write 0 or a time above it", o.GangStalenessGracePeriod)
	check(o.AdmissionQPS > 0, "--admission-qps must be above 0")
	for flag, name := range map[string]string{"share-resource": o.ShareResource, "gpu-resource": o.GPUResource} {
		check(strings.Contains(name, "/") && len(validation.IsQualifiedName(name)) == 0, "--%s: %q; write a resource name with a domain, such as nvidia.com/gpu-share", flag, name)
	}
	check(o.ShareResource != o.GPUResource, "--share-resource and --gpu-resource must be different")
	check(o.SharesPerGPU >= 1 && o.SharesPerGPU <= int64(units.MaxSharesPerGPU), "--shares-per-gpu: %d; write a number between 1 and %d", o.SharesPerGPU, units.MaxSharesPerGPU)
	return errors.Join(problems...)
}

// longestCall is how long kube-scheduler may wait for an answer: in a bind, for
// the rest of the gang and two calls to the API server.
func (o *Options) longestCall() time.Duration { return o.GangBindTimeout + 2*o.BindTimeout }

// dnsNames are the names under which kube-scheduler may call.
func (o *Options) dnsNames() []string {
	service := o.ServiceName + "." + o.Namespace
	names := []string{service + ".svc", service + ".svc.cluster.local", service, o.ServiceName, "localhost"}
	return append(names, o.DNSNames...)
}

// identity is this process's name in the lease.
func (o *Options) identity(random string) (string, error) {
	if o.LeaderElectIdentity != "" {
		return o.LeaderElectIdentity, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this host, for the lease: %w; give --leader-elect-identity", err)
	}
	return host + "_" + random, nil
}
