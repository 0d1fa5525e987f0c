package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// api describes the kinds by the CRDs, which controller-gen makes from the
// comments in pkg/api.
func api() (string, error) {
	files, err := filepath.Glob(filepath.Join("manifests", "crd", "*.yaml"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(generated + "# API\n\nGroup `tranche.dev`, version `v1alpha1`. How to use them:\n[queues](../how-to/queues.md), [gangs](../how-to/gangs.md).\n")
	slices.Reverse(files) // Queue first
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
		describeKind(&b, &crd)
	}
	return b.String(), nil
}

func describeKind(b *strings.Builder, crd *apiextensionsv1.CustomResourceDefinition) {
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	scope := "Namespaced"
	if crd.Spec.Scope == apiextensionsv1.ClusterScoped {
		scope = "Cluster-scoped"
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n%s; short name `%s`.\n", crd.Spec.Names.Kind, oneLine(schema.Description), scope, strings.Join(crd.Spec.Names.ShortNames, "`, `"))
	for _, part := range []string{"spec", "status"} {
		p := schema.Properties[part]
		fmt.Fprintf(b, "\n| %s | type | default | meaning |\n|---|---|---|---|\n", part)
		describeFields(b, "", &p)
	}
}

// describeFields writes a row per field, depth first in order of names.
func describeFields(b *strings.Builder, prefix string, parent *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(parent.Properties)) {
		p := parent.Properties[name]
		path := prefix + name
		meaning := oneLine(p.Description)
		if slices.Contains(parent.Required, name) {
			meaning = "Required. " + meaning
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", path, typeOf(&p), defaultOf(&p), cell(meaning))
		if belongsToKubernetes(name) {
			continue
		}
		switch {
		case p.Items != nil && p.Items.Schema != nil:
			describeFields(b, path+"[].", p.Items.Schema)
		default:
			describeFields(b, path+".", &p)
		}
	}
}

// belongsToKubernetes says whether a field is of a type that everybody knows.
func belongsToKubernetes(name string) bool {
	return name == "conditions" || name == "namespaceSelector"
}

func typeOf(p *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case p.XIntOrString:
		return "quantity"
	case len(p.Enum) > 0:
		words := make([]string, 0, len(p.Enum))
		for _, e := range p.Enum {
			words = append(words, code(strings.Trim(string(e.Raw), `"`)))
		}
		return strings.Join(words, ", ")
	case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(p.AdditionalProperties.Schema)
	case p.Items != nil && p.Items.Schema != nil:
		return "list of " + typeOf(p.Items.Schema)
	default:
		return p.Type
	}
}

func defaultOf(p *apiextensionsv1.JSONSchemaProps) string {
	if p.Default == nil {
		return ""
	}
	var value any
	if err := json.Unmarshal(p.Default.Raw, &value); err != nil {
		return code(string(p.Default.Raw))
	}
	if m, ok := value.(map[string]any); ok && len(m) == 0 {
		return "" // only so that the fields below get theirs
	}
	return code(fmt.Sprint(value))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
