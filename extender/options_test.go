package extender

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func valid() *Options {
	o := NewOptions()
	o.TLSSecretName, o.ClientCAFile = "tls", "/ca.crt"
	return o
}

func TestValidateReportsEveryProblem(t *testing.T) {
	cases := map[string]struct {
		change func(*Options)
		want   []string
	}{
		"defaults with a certificate": {func(*Options) {}, nil},
		"files":                       {func(o *Options) { o.TLSSecretName, o.TLSCertFile, o.TLSPrivateKeyFile = "", "c", "k" }, nil},
		"no certificate":              {func(o *Options) { o.TLSSecretName = "" }, []string{"give either --tls-cert-file"}},
		"both certificates":           {func(o *Options) { o.TLSCertFile, o.TLSPrivateKeyFile = "c", "k" }, []string{"give either --tls-cert-file"}},
		"half a certificate":          {func(o *Options) { o.TLSSecretName, o.TLSCertFile = "", "c" }, []string{"must be given together"}},
		"nobody may call":             {func(o *Options) { o.ClientCAFile, o.AllowedClientNames = "", nil }, []string{"--client-ca-file", "--allowed-client-names"}},
		"addresses":                   {func(o *Options) { o.BindAddress, o.MetricsBindAddress = "8443", "x" }, []string{"--bind-address", "--metrics-bind-address"}},
		"lease":                       {func(o *Options) { o.RenewDeadline = o.LeaseDuration }, []string{"--leader-elect-renew-deadline"}},
		"times":                       {func(o *Options) { o.HoldTimeout, o.BindTimeout, o.ShutdownTimeout = time.Millisecond, 0, 0 }, []string{"--hold-timeout", "--bind-timeout", "--shutdown-timeout"}},
		"placement":                   {func(o *Options) { o.Placement = "random" }, []string{"--placement"}},
		"rates":                       {func(o *Options) { o.KubeAPIBurst, o.RetryQPS = 0, 0 }, []string{"--kube-api-burst", "--retry-qps"}},
		"resources":                   {func(o *Options) { o.ShareResource, o.GPUResource = "cpu", "cpu" }, []string{"--share-resource", "--gpu-resource", "must be different"}},
		"shares":                      {func(o *Options) { o.SharesPerGPU = 1001 }, []string{"--shares-per-gpu"}},
		"gang times": {func(o *Options) {
			o.GangBindTimeout, o.GangHoldTimeout, o.GangStalenessGracePeriod = 500*time.Millisecond, 500*time.Millisecond, -1
		}, []string{"--gang-bind-timeout: 500ms", "--gang-hold-timeout (500ms) must be more", "--gang-staleness-grace-period"}},
		"admission rate": {func(o *Options) { o.AdmissionQPS = 0 }, []string{"--admission-qps"}},
		"namespace":      {func(o *Options) { o.Namespace = "a.b" }, []string{"--namespace"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := valid()
			tc.change(o)
			err := o.Validate()
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not mention %q", err, want)
				}
			}
		})
	}
}

func TestFlagsAreWhatOthersRelyOn(t *testing.T) {
	o := NewOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	for _, name := range []string{
		"kubeconfig", "namespace", "bind-address", "metrics-bind-address", "tls-cert-file", "tls-private-key-file", "tls-secret-name",
		"client-ca-file", "allowed-client-names", "leader-elect", "hold-timeout", "placement", "kube-api-qps", "kube-api-burst",
		"share-resource", "gpu-resource", "shares-per-gpu", "dns-names", "profiling",
		"gangs", "nominate", "gang-bind-timeout", "gang-hold-timeout", "gang-staleness-grace-period", "admission-qps",
	} {
		if fs.Lookup(name) == nil {
			t.Errorf("no flag --%s", name)
		}
	}
	if err := fs.Parse([]string{"--dns-names=a,b", "--allowed-client-names=x"}); err != nil {
		t.Fatal(err)
	}
	if names := o.dnsNames(); !slices.Contains(names, "b") || names[0] != "tranche-extender.tranche-system.svc" {
		t.Errorf("names %q", names)
	}
}

func TestIdentity(t *testing.T) {
	o := NewOptions()
	a, errA := o.identity("1")
	b, errB := o.identity("2")
	if errA != nil || errB != nil || a == b {
		t.Errorf("two processes are called %q and %q, %v, %v", a, b, errA, errB)
	}
	o.LeaderElectIdentity = "pod-0"
	if got, _ := o.identity("1"); got != "pod-0" {
		t.Errorf("identity %q", got)
	}
}
