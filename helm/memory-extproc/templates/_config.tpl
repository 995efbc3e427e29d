{{/* What stands in files of the pod: "true" while Milvus Lite or the SQLite journal is used. */}}
{{- define "memory.lite" -}}
{{- if not (dig "memory" "milvus" "address" "" .Values.config) -}}true{{- end -}}
{{- end -}}
{{- define "memory.sqlite" -}}
{{- if not (dig "coordination" "url" "" .Values.config) -}}true{{- end -}}
{{- end -}}
{{- define "memory.stateful" -}}
{{- if or (include "memory.lite" .) (include "memory.sqlite" .) -}}true{{- end -}}
{{- end -}}

{{/* The whole config.yaml: what the operator gave, and what is the chart's to say. */}}
{{- define "memory.config" -}}
{{- $socket := eq .Values.mode "sidecar" -}}
{{- $listen := dict
  "ext_proc" (ternary (printf "unix:%s/ext_proc.sock" .Values.socketPath) (printf "0.0.0.0:%d" (int .Values.ports.extProc)) $socket)
  "api" (printf "%s:%d" (ternary "0.0.0.0" "127.0.0.1" .Values.api.enabled) (int .Values.ports.api))
  "http" (printf "0.0.0.0:%d" (int .Values.ports.http))
  "insecure" (and (not $socket) (not .Values.tls.enabled))
-}}
{{- $own := dict
  "listen" $listen
  "data_dir" "/var/lib/memory-extproc"
  "shutdown" (dict
    "announce" (printf "%ds" (int .Values.drain.announce))
    "grace" (printf "%ds" (int .Values.drain.longestStream))
    "flush" (printf "%ds" (int .Values.drain.flush)))
  "memory" (dict "embedding" (dict "models_dir" "/opt/memory-extproc/models"))
-}}
{{- if .Values.gateway.observe.enabled -}}
{{- $_ := set $own "envoy" (dict "two_filters" true) -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $own "tls" (dict
  "cert" "/etc/memory-extproc/tls/tls.crt"
  "key" "/etc/memory-extproc/tls/tls.key"
  "client_ca" "/etc/memory-extproc/tls/ca.crt"
  "allowed_names" .Values.tls.allowedNames) -}}
{{- end -}}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{/* memory.milvus.token_file → MEMORY_EXTPROC__MEMORY__MILVUS__TOKEN_FILE */}}
{{- define "memory.settingVariable" -}}
{{- printf "MEMORY_EXTPROC__%s" (. | upper | replace "." "__") -}}
{{- end -}}
