{{- define "xpu-agent.labels" -}}
app.kubernetes.io/name: xpu-agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "xpu-agent.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "xpu-scheduler.labels" -}}
app.kubernetes.io/name: xpu-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "xpu-scheduler.settings" -}}
{{- $settings := .Files.Get "files/scheduler.yaml" | fromYaml -}}
{{- $_ := set $settings.leader_election "namespace" .Values.scheduler.namespace -}}
{{- mergeOverwrite $settings .Values.scheduler.settings | toYaml -}}
{{- end -}}

{{/* A right that a setting of the scheduler needs, and its binding: a dict of root, part, rules */}}
{{- define "xpu-scheduler.right" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: xpu-scheduler-{{ .part }}
  labels:
    {{- include "xpu-scheduler.labels" .root | nindent 4 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: xpu-scheduler-{{ .part }}
  labels:
    {{- include "xpu-scheduler.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: xpu-scheduler-{{ .part }}
subjects:
- kind: ServiceAccount
  name: xpu-scheduler
  namespace: {{ .root.Values.scheduler.namespace }}
---
{{ end -}}

{{/* The settings of the chart, then the values' on top */}}
{{- define "xpu-agent.settings" -}}
{{- $settings := .Files.Get "files/config.yaml" | fromYaml -}}
{{- if ne (int .Values.port) 9316 -}}
{{- $_ := set $settings.metrics "listen" (printf "0.0.0.0:%d" (int .Values.port)) -}}
{{- end -}}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" -}}
{{- $_ := set $settings "kubelet" (dict "root_dir" .Values.kubeletDir) -}}
{{- end -}}
{{- mergeOverwrite $settings .Values.settings | toYaml -}}
{{- end -}}

{{/* A right of a component, and its binding to the agent's account: a dict of root, part, rules */}}
{{- define "xpu-agent.right" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .root.Values.nameOverride }}-{{ .part }}
  labels:
    {{- include "xpu-agent.labels" .root | nindent 4 }}
rules:
{{ .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .root.Values.nameOverride }}-{{ .part }}
  labels:
    {{- include "xpu-agent.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .root.Values.nameOverride }}-{{ .part }}
subjects:
- kind: ServiceAccount
  name: {{ .root.Values.nameOverride }}
  namespace: {{ .root.Release.Namespace }}
---
{{ end -}}
