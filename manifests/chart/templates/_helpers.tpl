{{/* Labels of every object. */}}
{{- define "tranche.labels" -}}
app.kubernetes.io/name: tranche
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels that select one part's pods; takes a dict of root and part. */}}
{{- define "tranche.selector" -}}
app.kubernetes.io/name: tranche
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* The image of one part; takes a dict of root and part. */}}
{{- define "tranche.image" -}}
{{ .root.Values.image.registry }}/tranche-{{ .part }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The flags that name the extended resources. */}}
{{- define "tranche.resourceFlags" -}}
- --share-resource={{ .Values.resources.share }}
- --gpu-resource={{ .Values.resources.gpu }}
- --shares-per-gpu={{ .Values.resources.sharesPerGPU }}
{{- end }}

{{/* CEL: the maps old and new have the same keys and values, apart from the keys
in except. dyn hides from the policies' type check that these are objects with
fixed fields; so fields of coming Kubernetes releases are compared as well. */}}
{{- define "tranche.unchanged" -}}
{{- $except := printf "k in ['%s'] || " (join "', '" .except) -}}
dyn({{ .new }}).all(k, {{ $except }}k in dyn({{ .old }}) && dyn({{ .old }})[k] == dyn({{ .new }})[k]) &&
dyn({{ .old }}).all(k, {{ $except }}k in dyn({{ .new }}))
{{- end }}

{{/* The user name of a part's service account; takes a dict of root and name. */}}
{{- define "tranche.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}
