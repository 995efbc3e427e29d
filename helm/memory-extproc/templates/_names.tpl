{{- define "memory.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of the objects of one component: the learner's have a suffix. */}}
{{- define "memory.fullname" -}}
{{- include "memory.releaseName" . -}}{{- if eq (default "" .component) "learner" -}}-learner{{- end -}}
{{- end -}}

{{- define "memory.releaseName" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "memory.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "memory.selector" -}}
app.kubernetes.io/name: {{ include "memory.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ default "server" .component }}
{{- end -}}

{{- define "memory.labels" -}}
{{ include "memory.selector" . }}
{{ include "memory.moreLabels" . }}
{{- end -}}

{{/* Of pods that come and go beside the server: no Service may take them for it. */}}
{{- define "memory.jobLabels" -}}
app.kubernetes.io/name: {{ include "memory.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{ include "memory.moreLabels" .root }}
{{- end -}}

{{- define "memory.moreLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: memory-extproc
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "memory.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "memory.releaseName" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "memory.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "memory.tlsSecret" -}}
{{- default (printf "%s-tls" (include "memory.releaseName" .)) .Values.tls.secretName -}}
{{- end -}}

{{- define "memory.gatewayNamespace" -}}
{{- default .Release.Namespace .Values.gateway.namespace -}}
{{- end -}}

{{- define "memory.serviceHost" -}}
{{- printf "%s.%s.svc.cluster.local" (include "memory.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Who sends requests, for the NetworkPolicy: a policy that shuts Envoy out shows nowhere, requests pass without memory.
Envoy Gateway runs its Envoys in its own namespace, or where it is told so in the Gateway's. */}}
{{- define "memory.envoyPeers" -}}
{{- if has .Values.gateway.type (list "envoy-gateway" "envoy-ai-gateway") -}}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ list "envoy-gateway-system" (include "memory.gatewayNamespace" .) | uniq | toJson }}
  podSelector:
    matchLabels:
      app.kubernetes.io/managed-by: envoy-gateway
      app.kubernetes.io/component: proxy
{{- else if eq .Values.gateway.type "istio" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ include "memory.gatewayNamespace" . }}
  podSelector:
    matchLabels:
      {{- include "memory.istioPods" . | nindent 6 }}
{{- else if ne (include "memory.gatewayNamespace" .) .Release.Namespace -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ include "memory.gatewayNamespace" . }}
{{- else -}}
- podSelector: {}
{{- end -}}
{{- end -}}

{{/* Labels of the pods in which Istio runs the gateway: a classic one has those of its own chart. */}}
{{- define "memory.istioPods" -}}
{{- with .Values.gateway.istio.selector -}}
{{- toYaml . -}}
{{- else -}}
gateway.networking.k8s.io/gateway-name: {{ .Values.gateway.name }}
{{- end -}}
{{- end -}}

{{/* Whether the sidecar's pods are in the mesh. A STRICT policy refuses plaintext wherever a proxy holds it, and a filter
that fails open would tell nobody: pods that Envoy speaks to directly are kept out of the mesh. */}}
{{- define "memory.meshLabels" -}}
{{- if eq .Values.gateway.type "istio" -}}
sidecar.istio.io/inject: {{ eq .Values.gateway.istio.mesh "sidecar" | quote }}
istio.io/dataplane-mode: {{ ternary "ambient" "none" (eq .Values.gateway.istio.mesh "ambient") }}
{{- end -}}
{{- end -}}

{{/* StatefulSet wherever files of a pod are to outlive it; a Deployment where an operator accepts their loss. */}}
{{- define "memory.kind" -}}
{{- if eq .Values.mode "daemonset" -}}DaemonSet{{- else if include "memory.claimed" . -}}StatefulSet{{- else -}}Deployment{{- end -}}
{{- end -}}
