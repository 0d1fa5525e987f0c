package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestPodsAreConfined(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, tmpl := range templates(render(t, values...)) {
				pod := tmpl.Spec
				if pod.HostNetwork || pod.HostPID || pod.HostIPC {
					t.Errorf("%s shares a namespace of the host", tmpl.owner)
				}
				if pod.SecurityContext.SeccompProfile == nil || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%s: no seccomp profile", tmpl.owner)
				}
				for _, c := range pod.Containers {
					s := c.SecurityContext
					if *s.AllowPrivilegeEscalation || (s.Privileged != nil && *s.Privileged) || !*s.ReadOnlyRootFilesystem {
						t.Errorf("%s: privilege escalation %t, privileged %v, read-only root %t", tmpl.owner, *s.AllowPrivilegeEscalation, s.Privileged, *s.ReadOnlyRootFilesystem)
					}
					if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
						t.Errorf("%s: capabilities %v", tmpl.owner, s.Capabilities)
					}
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("%s: cpu and memory requests and a memory limit are expected: %v", tmpl.owner, c.Resources)
					}
				}
				if tmpl.owner == "tranche-nodeplugin" {
					continue // root, for the kubelet's directories
				}
				if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser == 0 {
					t.Errorf("%s may run as root", tmpl.owner)
				}
			}
		})
	}
}

func TestOnlyTheNodePluginSeesTheHostAndOnlyWhatItNeeds(t *testing.T) {
	always := map[string]string{
		"/var/lib/kubelet/device-plugins": "write",
		"/data/kubelet/pods-api":          "read",
		"/data/kubelet/pod-resources":     "read",
		"/data/kubelet/pods":              "read",
		"/etc/cdi":                        "write",
		"/var/lib/tranche":                "write",
	}
	// NVIDIA's CDI files are read if containers get their devices, and the
	// cgroups are for the trial of memory limits.
	cases := map[string]struct {
		values []string
		more   map[string]string
	}{
		"defaults":                      {nil, nil},
		"NVIDIA's devices":              {[]string{"nodePlugin.nvidiaCDIKind=nvidia.com/gpu"}, map[string]string{"/var/run/cdi": "read", "/sys/fs/cgroup": "write"}},
		"NVIDIA's devices, not limited": {[]string{"nodePlugin.nvidiaCDIKind=nvidia.com/gpu", "nodePlugin.isolation=none"}, map[string]string{"/var/run/cdi": "read"}},
		"limits wanted":                 {[]string{"nodePlugin.isolation=cgroup"}, map[string]string{"/sys/fs/cgroup": "write"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(always)
			maps.Copy(want, tc.more)
			all := render(t, append(tc.values, "nodePlugin.kubeletRootDir=/data/kubelet")...)
			if diff := cmp.Diff(want, hostPaths(t, all)); diff != "" {
				t.Errorf("host paths of the node plugin (-want +got):\n%s", diff)
			}
		})
	}
}

// hostPaths are what the node plugin mounts of the host, and whether to "read"
// or to "write". Other parts mount nothing.
func hostPaths(t *testing.T, all objects) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, tmpl := range templates(all) {
		mounts := map[string]corev1.VolumeMount{}
		for _, m := range tmpl.Spec.Containers[0].VolumeMounts {
			mounts[m.Name] = m
		}
		for _, v := range tmpl.Spec.Volumes {
			if v.HostPath == nil {
				continue
			}
			path, m := v.HostPath.Path, mounts[v.Name]
			if tmpl.owner != "tranche-nodeplugin" {
				t.Errorf("%s mounts %s of the host", tmpl.owner, path)
				continue
			}
			// The kubelet and the runtime are told paths as the plugin sees them.
			if m.MountPath != path && path != "/sys/fs/cgroup" {
				t.Errorf("%s of the host is %s inside", path, m.MountPath)
			}
			got[path] = map[bool]string{true: "read", false: "write"}[m.ReadOnly]
		}
	}
	return got
}

func TestNodePluginRunsOnChosenNodesOnly(t *testing.T) {
	pod := named[*appsv1.DaemonSet](t, install(t), "tranche-nodeplugin").Spec.Template.Spec
	if diff := cmp.Diff(map[string]string{"tranche.dev/node": "true"}, pod.NodeSelector); diff != "" {
		t.Errorf("node selector (-want +got):\n%s", diff)
	}
	if pod.PriorityClassName != "system-node-critical" || !slices.ContainsFunc(pod.Tolerations, func(x corev1.Toleration) bool { return x.Key == "nvidia.com/gpu" }) {
		t.Errorf("priority %s, tolerations %v", pod.PriorityClassName, pod.Tolerations)
	}
}

// Only the leader is Ready, so a roll-out that waited for new pods to be Ready
// before it takes old ones away would never end.
func TestExtenderRollsOutWithoutWaitingForStandbys(t *testing.T) {
	d := named[*appsv1.Deployment](t, install(t), "tranche-extender")
	if *d.Spec.Replicas < 2 || d.Spec.Strategy.RollingUpdate.MaxUnavailable.String() != "100%" {
		t.Errorf("replicas %d, maxUnavailable %s", *d.Spec.Replicas, d.Spec.Strategy.RollingUpdate.MaxUnavailable)
	}
	c := d.Spec.Template.Spec.Containers[0]
	if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" || !slices.Contains(c.Args, "--leader-elect=true") {
		t.Errorf("readiness %v, liveness %v, args %v", c.ReadinessProbe, c.LivenessProbe, c.Args)
	}
}

func TestImagesAreNamedByValues(t *testing.T) {
	var got []string
	for _, tmpl := range templates(render(t, "image.registry=registry.example.com/gpu", "image.tag=v9")) {
		got = append(got, tmpl.Spec.Containers[0].Image)
	}
	slices.Sort(got)
	want := []string{"registry.example.com/gpu/tranche-extender:v9", "registry.example.com/gpu/tranche-nodeplugin:v9", "registry.example.com/gpu/tranche-webhook:v9"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	for _, tmpl := range templates(install(t)) {
		if strings.HasSuffix(tmpl.Spec.Containers[0].Image, ":latest") {
			t.Errorf("%s has no version", tmpl.Spec.Containers[0].Image)
		}
	}
}
