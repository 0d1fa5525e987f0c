package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/tranche-dev/tranche/webhook/workload"
)

// rights lists what an account may do as "verb group/resource[/name]", sorted;
// those of a Role end in " here".
func rights(t *testing.T, all objects, account string) []string {
	t.Helper()
	var found []string
	add := func(rules []rbacv1.PolicyRule, suffix string) {
		for _, r := range rules {
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						for _, verb := range r.Verbs {
							found = append(found, strings.TrimSuffix(fmt.Sprintf("%s %s/%s/%s", verb, group, resource, name), "/")+suffix)
						}
					}
				}
			}
		}
	}
	for _, b := range of[*rbacv1.ClusterRoleBinding](all) {
		if b.Subjects[0].Name == account {
			add(named[*rbacv1.ClusterRole](t, all, b.RoleRef.Name).Rules, "")
		}
	}
	for _, b := range of[*rbacv1.RoleBinding](all) {
		if b.Subjects[0].Name == account {
			add(named[*rbacv1.Role](t, all, b.RoleRef.Name).Rules, " here")
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestNobodyHasWildcardsOrRightsThatGrantOthers(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			all := render(t, values...)
			for _, account := range []string{"tranche-extender", "tranche-webhook", "tranche-nodeplugin"} {
				for _, r := range rights(t, all, account) {
					verb, what, _ := strings.Cut(r, " ")
					switch {
					case strings.Contains(r, "*"):
						t.Errorf("%s: wildcard in %q", account, r)
					case slices.Contains([]string{"bind", "escalate", "impersonate", "deletecollection"}, verb):
						t.Errorf("%s: %q", account, r)
					case strings.HasPrefix(what, "/secrets") && !strings.HasSuffix(r, " here"):
						t.Errorf("%s reads secrets outside its namespace: %q", account, r)
					case strings.HasPrefix(what, "/pods/exec"), strings.HasPrefix(what, "/serviceaccounts"), strings.HasPrefix(what, "rbac."):
						t.Errorf("%s: %q", account, r)
					}
				}
			}
			for _, b := range of[*rbacv1.ClusterRoleBinding](all) {
				if len(b.Subjects) != 1 || b.Subjects[0].Kind != "ServiceAccount" || b.Subjects[0].Namespace != namespace {
					t.Errorf("binding %s: subjects %v", b.Name, b.Subjects)
				}
			}
		})
	}
}

// The whole list, so that a new right is a decision that a review sees.
func TestRightsAreTheseAndNoOthers(t *testing.T) {
	read := func(resources ...string) []string {
		var list []string
		for _, r := range resources {
			list = append(list, "get "+r, "list "+r, "watch "+r)
		}
		return list
	}
	write := func(resource string, verbs ...string) []string {
		var list []string
		for _, v := range verbs {
			list = append(list, v+" "+resource)
		}
		return list
	}
	const (
		mutating   = "admissionregistration.k8s.io/mutatingwebhookconfigurations/tranche"
		validating = "admissionregistration.k8s.io/validatingwebhookconfigurations/tranche"
	)
	var owners []string // the webhook's own list of what it reads
	for _, r := range workload.Resources() {
		owners = append(owners, "get "+r)
	}
	want := map[string][]string{
		"tranche-extender": slices.Concat(
			write("/events", "create", "patch"), read("/nodes", "/pods", "/namespaces"), write("/pods", "patch"), write("/pods/binding", "create"),
			write("/pods/status", "patch"), write("/pods/eviction", "create"), write("policy/poddisruptionbudgets", "list"),
			read("tranche.dev/gangs", "scheduling.k8s.io/podgroups"), write("tranche.dev/gangs", "create", "update", "patch", "delete"),
			write("tranche.dev/gangs/status", "update", "patch"),
			read("tranche.dev/queues"), write("tranche.dev/queues", "patch"), write("tranche.dev/queues/status", "patch"),
			write("/secrets/tranche-extender-tls here", "get", "update"),
			write("coordination.k8s.io/leases here", "create"), write("coordination.k8s.io/leases/tranche-extender here", "get", "update"),
		),
		"tranche-webhook": slices.Concat(
			read("/namespaces", "/nodes", "tranche.dev/queues"), owners,
			read(mutating, validating), write(mutating, "update", "patch"), write(validating, "update", "patch"),
			read("/secrets/tranche-webhook-tls here"), write("/secrets/tranche-webhook-tls here", "update", "patch"),
		),
		"tranche-nodeplugin": slices.Concat(
			write("/nodes", "list", "watch", "patch"), write("/pods", "list", "watch"), write("/events", "create"),
		),
	}
	all := install(t)
	for account, list := range want {
		slices.Sort(list)
		if diff := cmp.Diff(list, rights(t, all, account)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", account, diff)
		}
	}
}

func TestNodePluginReadsNoPodsWhereTheKubeletListsThem(t *testing.T) {
	got := rights(t, render(t, "nodePlugin.podSource=kubelet"), "tranche-nodeplugin")
	if i := slices.IndexFunc(got, func(r string) bool { return strings.HasSuffix(r, "/pods") }); i >= 0 {
		t.Errorf("%q is not needed", got[i])
	}
}
