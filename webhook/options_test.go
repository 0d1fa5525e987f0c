package webhook_test

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/tranche-dev/tranche/webhook"
)

func TestDefaultsAreValid(t *testing.T) {
	o := webhook.DefaultOptions()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	if host, port := o.Listen(); host != "0.0.0.0" || port != 9443 {
		t.Errorf("listens on %s, %d", host, port)
	}
	if o.TLSVersion() != tls.VersionTLS13 {
		t.Errorf("TLS version %x", o.TLSVersion())
	}
	want := []string{
		"tranche-webhook.tranche-system.svc", "tranche-webhook.tranche-system.svc.cluster.local",
		"tranche-webhook.tranche-system", "tranche-webhook",
	}
	if diff := cmp.Diff(want, o.CertificateNames()); diff != "" {
		t.Errorf("certificate names (-want +got):\n%s", diff)
	}
}

func TestValidateReportsEveryProblem(t *testing.T) {
	cases := map[string]struct {
		args []string
		want []string
	}{
		"another cluster": {args: []string{
			"--kubeconfig=/k", "--namespace=gpu", "--bind-address=[::1]:443", "--dns-names=a.example,localhost",
			"--metrics-bind-address=0", "--health-bind-address=:80", "--tls-min-version=VersionTLS12",
			"--share-resource=example.com/share", "--gpu-resource=example.com/gpu", "--shares-per-gpu=1000", "--default-queue=a.b",
		}},
		"certificates of others":                {args: []string{"--self-signed=false", "--cert-dir=/certs", "--cert-secret-name="}},
		"certificates of others, but not where": {args: []string{"--self-signed=false"}, want: []string{"--cert-dir is needed"}},
		"everything": {
			args: []string{
				"--namespace=A", "--default-queue=a b", "--cert-secret-name=", "--service-name=1", "--webhook-configuration=_", "--dns-names=127.0.0.1",
				"--bind-address=443", "--metrics-bind-address=host:0", "--health-bind-address=host:x", "--tls-min-version=1.1",
				"--share-resource=gpu", "--gpu-resource=kubernetes.io/gpu", "--shares-per-gpu=0",
			},
			want: []string{
				"--namespace=A: ", "--default-queue=a b: ", "--cert-secret-name=: ", "--service-name=1: ", "--webhook-configuration=_: ",
				"--dns-names=127.0.0.1: an IP address", "--bind-address=443: write HOST:PORT", "--metrics-bind-address=host:0: the port",
				"--health-bind-address=host:x: the port", "--tls-min-version=1.1: ", "--share-resource=gpu: an extended resource",
				"--gpu-resource=kubernetes.io/gpu: an extended resource", "--shares-per-gpu=0: write 1 to 1000",
			},
		},
		"one resource for both": {args: []string{"--gpu-resource=nvidia.com/gpu-share"}, want: []string{"they must differ"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := webhook.DefaultOptions()
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := o.Validate()
			if (err != nil) != (len(tc.want) > 0) {
				t.Fatalf("error: %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not mention %q:\n%v", want, err)
				}
			}
		})
	}
}
