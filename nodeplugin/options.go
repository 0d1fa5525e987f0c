package nodeplugin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/tranche-dev/tranche/nodeplugin/health"
	"github.com/tranche-dev/tranche/nodeplugin/isolation"
	"github.com/tranche-dev/tranche/pkg/contract"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The backends of --nvml and the sources of --pod-source.
const (
	NVMLNvidia    = "nvidia"
	NVMLSimulated = "simulated"

	PodSourceAuto      = "auto"
	PodSourceKubelet   = "kubelet"
	PodSourceAPIServer = "apiserver"
)

// Options are the node plugin's settings. NewOptions has the defaults.
type Options struct {
	// Kubeconfig is a file; empty: the service account of the pod.
	Kubeconfig string
	// NodeName is the name of the Node object.
	NodeName string

	// NVML is NVMLNvidia or NVMLSimulated; SimulationFile goes with the latter.
	NVML           string
	NVMLLibrary    string
	SimulationFile string
	// FailOnInitError ends the program when NVML does not start at first.
	FailOnInitError bool

	// KubeletRootDir has the kubelet's sockets and pods; DevicePluginDir is
	// where plugins register.
	KubeletRootDir  string
	DevicePluginDir string
	// CDIDir is where the container runtime looks for CDI files.
	CDIDir string
	// StateDir holds the ledger.
	StateDir string
	// PodSource is one of the PodSource constants.
	PodSource string

	// Isolation is how memory limits are enforced.
	Isolation string
	// NVIDIACDIKind is the kind of NVIDIA's CDI devices, or empty; NVIDIACDIDirs
	// is where they are described.
	NVIDIACDIKind string
	NVIDIACDIDirs []string
	CgroupRoot    string

	// HealthCheckInterval is the time between probes, HealthRecoveryPeriod how
	// long a GPU must have answered all of them to be fit again.
	HealthCheckInterval  time.Duration
	HealthRecoveryPeriod time.Duration
	// ApplicationXIDs say nothing about the GPU.
	ApplicationXIDs []string

	MetricsBindAddress string

	ShareResource string
	GPUResource   string
	SharesPerGPU  int64
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	res := contract.DefaultResources()
	xids := make([]string, 0, len(health.ApplicationXIDs))
	for _, x := range health.ApplicationXIDs {
		xids = append(xids, strconv.FormatUint(x, 10))
	}
	return &Options{
		NodeName: os.Getenv("NODE_NAME"), NVML: NVMLNvidia,
		KubeletRootDir: "/var/lib/kubelet", DevicePluginDir: "/var/lib/kubelet/device-plugins",
		CDIDir: "/etc/cdi", StateDir: "/var/lib/tranche", PodSource: PodSourceAuto,
		Isolation: string(isolation.ModeAuto), NVIDIACDIDirs: []string{"/etc/cdi", "/var/run/cdi"}, CgroupRoot: "/sys/fs/cgroup",
		HealthCheckInterval: 5 * time.Second, HealthRecoveryPeriod: 30 * time.Second, ApplicationXIDs: xids,
		MetricsBindAddress: "127.0.0.1:8083",
		ShareResource:      string(res.Share), GPUResource: string(res.GPU), SharesPerGPU: int64(res.PerGPU),
	}
}

// AddFlags declares one flag per setting.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file; empty: the pod's service account")
	fs.StringVar(&o.NodeName, "node-name", o.NodeName, "name of the Node object of this machine; default: the environment variable NODE_NAME")
	fs.StringVar(&o.NVML, "nvml", o.NVML, "where GPUs come from: nvidia (libnvidia-ml.so.1) or simulated")
	fs.StringVar(&o.NVMLLibrary, "nvml-library", o.NVMLLibrary, "path of libnvidia-ml.so.1, for a driver that is not where the loader looks, such as below /run/nvidia/driver")
	fs.StringVar(&o.SimulationFile, "simulation-file", o.SimulationFile, "YAML file that scripts the GPUs of --nvml=simulated; read again when it changes")
	fs.BoolVar(&o.FailOnInitError, "fail-on-init-error", o.FailOnInitError, "end with an error when NVML does not start, instead of trying again; for nodes that must have GPUs")
	fs.StringVar(&o.KubeletRootDir, "kubelet-root-dir", o.KubeletRootDir, "the kubelet's --root-dir")
	fs.StringVar(&o.DevicePluginDir, "device-plugin-dir", o.DevicePluginDir, "folder where device plugins register; the kubelet's is fixed, whatever its root folder")
	fs.StringVar(&o.CDIDir, "cdi-dir", o.CDIDir, "folder for our CDI file; the container runtime must look there")
	fs.StringVar(&o.StateDir, "state-dir", o.StateDir, "folder for the ledger; must survive restarts of this program")
	fs.StringVar(&o.PodSource, "pod-source", o.PodSource, "who says which pods the node has: kubelet (its pods API, Kubernetes 1.37), apiserver, or auto: the kubelet, and the API server while the kubelet does not answer")
	fs.StringVar(&o.Isolation, "isolation", o.Isolation, "how memory limits are enforced: cgroup (driver 615, cgroup v2, container toolkit 1.20.1), none, or auto: cgroup where a trial shows that it works")
	fs.StringVar(&o.NVIDIACDIKind, "nvidia-cdi-kind", o.NVIDIACDIKind, "kind of the CDI devices made by nvidia-ctk, such as nvidia.com/gpu: containers then get those too, with the driver's files; empty: NVIDIA's container runtime brings the driver")
	fs.StringSliceVar(&o.NVIDIACDIDirs, "nvidia-cdi-dirs", o.NVIDIACDIDirs, "folders where nvidia-ctk writes its CDI files")
	fs.StringVar(&o.CgroupRoot, "cgroup-root", o.CgroupRoot, "where cgroups are mounted, for the trial of --isolation")
	fs.DurationVar(&o.HealthCheckInterval, "health-check-interval", o.HealthCheckInterval, "time between probes of the GPUs")
	fs.DurationVar(&o.HealthRecoveryPeriod, "health-recovery-period", o.HealthRecoveryPeriod, "how long a GPU must have been without fault before it takes pods again")
	fs.StringSliceVar(&o.ApplicationXIDs, "application-xids", o.ApplicationXIDs, "GPU error numbers (XIDs) that programs cause and that do not make a GPU unfit")
	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress, "plain HTTP: /metrics /healthz /readyz")
	fs.StringVar(&o.ShareResource, "share-resource", o.ShareResource, "extended resource that counts shares of GPUs")
	fs.StringVar(&o.GPUResource, "gpu-resource", o.GPUResource, "extended resource that counts whole GPUs")
	fs.Int64Var(&o.SharesPerGPU, "shares-per-gpu", o.SharesPerGPU, "shares that one GPU is cut into; the extender and the webhook must agree")
}

// maxSocketPath is what the kernel takes as the path of a socket.
const maxSocketPath = 107

// Validate reports every problem at once.
func (o *Options) Validate() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	oneOf := func(flag, value string, choices ...string) {
		if !slices.Contains(choices, value) {
			refuse("--%s=%q: write one of %s", flag, value, strings.Join(choices, ", "))
		}
	}
	if o.NodeName == "" {
		refuse("--node-name is empty; write the name of this machine's Node object, or set NODE_NAME from the pod's spec.nodeName")
	}
	oneOf("nvml", o.NVML, NVMLNvidia, NVMLSimulated)
	if (o.NVML == NVMLSimulated) != (o.SimulationFile != "") {
		refuse("--simulation-file goes with --nvml=simulated, and only with it")
	}
	oneOf("pod-source", o.PodSource, PodSourceAuto, PodSourceKubelet, PodSourceAPIServer)
	modes := make([]string, 0, len(isolation.Modes))
	for _, m := range isolation.Modes {
		modes = append(modes, string(m))
	}
	oneOf("isolation", o.Isolation, modes...)
	for flag, dir := range map[string]string{
		"kubelet-root-dir": o.KubeletRootDir, "device-plugin-dir": o.DevicePluginDir, "cdi-dir": o.CDIDir, "state-dir": o.StateDir,
	} {
		if !filepath.IsAbs(dir) {
			refuse("--%s=%q: write an absolute path", flag, dir)
		}
	}
	if longest := filepath.Join(o.DevicePluginDir, "tranche-"+o.ShareResource+"-0123456789ab.sock"); len(longest) > maxSocketPath {
		refuse("--device-plugin-dir=%s: too long for the path of a socket, of which the kernel takes %d bytes", o.DevicePluginDir, maxSocketPath)
	}
	if o.NVIDIACDIKind != "" {
		vendor, class := parser.ParseQualifier(o.NVIDIACDIKind)
		if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
			refuse("--nvidia-cdi-kind=%q: %w", o.NVIDIACDIKind, err)
		}
	}
	if o.HealthCheckInterval < 100*time.Millisecond {
		refuse("--health-check-interval=%s: write at least 100ms", o.HealthCheckInterval)
	}
	if o.HealthRecoveryPeriod < 0 {
		refuse("--health-recovery-period=%s: write 0 or more", o.HealthRecoveryPeriod)
	}
	if _, err := o.xids(); err != nil {
		refuse("--application-xids: %w", err)
	}
	if _, _, err := net.SplitHostPort(o.MetricsBindAddress); err != nil {
		refuse("--metrics-bind-address=%q: %w", o.MetricsBindAddress, err)
	}
	for flag, name := range map[string]string{"share-resource": o.ShareResource, "gpu-resource": o.GPUResource} {
		if errs := validation.IsQualifiedName(name); len(errs) > 0 || !strings.Contains(name, "/") {
			refuse("--%s=%q: write a domain and a name, such as nvidia.com/gpu-share %s", flag, name, strings.Join(errs, "; "))
		}
	}
	if o.ShareResource == o.GPUResource {
		refuse("--share-resource and --gpu-resource are both %s", o.ShareResource)
	}
	if o.SharesPerGPU < 1 || o.SharesPerGPU > int64(units.MaxSharesPerGPU) {
		refuse("--shares-per-gpu=%d: write 1 to %d", o.SharesPerGPU, units.MaxSharesPerGPU)
	}
	return errors.Join(problems...)
}

func (o *Options) xids() ([]uint64, error) {
	xids := make([]uint64, 0, len(o.ApplicationXIDs))
	for _, s := range o.ApplicationXIDs {
		x, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not the number of an XID", s)
		}
		xids = append(xids, x)
	}
	return xids, nil
}

func (o *Options) resources() contract.Resources {
	return contract.Resources{
		Share: corev1.ResourceName(o.ShareResource), GPU: corev1.ResourceName(o.GPUResource), PerGPU: units.Shares(o.SharesPerGPU),
	}
}

// Sockets of the kubelet below its root directory.
func (o *Options) podsAPISocket() string {
	return filepath.Join(o.KubeletRootDir, "pods-api", "pods-api.sock")
}

func (o *Options) podResourcesSocket() string {
	return filepath.Join(o.KubeletRootDir, "pod-resources", "kubelet.sock")
}

func (o *Options) ledgerFile() string { return filepath.Join(o.StateDir, "ledger.json") }
