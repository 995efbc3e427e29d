{{/* What stands in files of the pod: "true" while Milvus Lite or the SQLite journal is used. */}}
{{- define "memory.lite" -}}
{{- if not (dig "memory" "milvus" "address" "" .Values.config) -}}true{{- end -}}
{{- end -}}
{{- define "memory.sqlite" -}}
{{- if not (dig "coordination" "url" "" .Values.config) -}}true{{- end -}}
{{- end -}}
{{/* "true" where the pod's files outlive it. Each pod has some: the intake log, turns put aside while Redis is away, the
audit log; beside these, Milvus Lite or the SQLite journal. */}}
{{- define "memory.claimed" -}}
{{- if and .Values.persistence.enabled (or .Values.persistence.existingClaim (eq .Values.mode "deployment")) -}}true{{- end -}}
{{- end -}}

{{/* The whole config.yaml: what the operator gave, and what is the chart's to say. */}}
{{- define "memory.config" -}}
{{- $socket := eq .Values.mode "sidecar" -}}
{{- $listen := dict
  "ext_proc" (ternary (printf "unix:%s/ext_proc.sock" .Values.socketPath) (printf "0.0.0.0:%d" (int .Values.ports.extProc)) $socket)
  "api" (printf "%s:%d" (ternary "0.0.0.0" "127.0.0.1" .Values.api.enabled) (int .Values.ports.api))
  "console" (printf "%s:%d" (ternary "0.0.0.0" "127.0.0.1" .Values.api.enabled) (int .Values.ports.console))
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
{{- if .Values.learner.enabled -}}
{{- $_ := set $own "role" (ternary "learn" "serve" (eq (default "" .component) "learner")) -}}
{{- end -}}
{{- $envoy := dict -}}
{{- if .Values.gateway.observe.enabled -}}
{{- $_ := set $envoy "two_filters" true -}}
{{- end -}}
{{- if ne .Values.gateway.type "none" -}}
{{/* What Envoy is told is told to the sidecar: a header that it trusts and Envoy does not strip is anybody's to send, and a
deadline beyond Envoy's patience is never met. */}}
{{- $_ := set $envoy "message_timeout" (include "memory.messageTimeout" .) -}}
{{- $_ := set $own "identity" (dict
  "user_header" (lower .Values.gateway.identity.userHeader)
  "tenant_header" (lower .Values.gateway.identity.tenantHeader)) -}}
{{- end -}}
{{- if $envoy -}}
{{- $_ := set $own "envoy" $envoy -}}
{{- end -}}
{{- if .Values.api.route.page -}}
{{- $_ := set $own "console" (dict "page" true "hosts" .Values.api.route.hostnames) -}}
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

{{/* Envoy's patience with one message: as given, or like the program's own, four deadlines and a second at least; in whole
seconds, which every gateway's notation of durations has. */}}
{{- define "memory.messageTimeout" -}}
{{- $given := dig "envoy" "message_timeout" "auto" .Values.config -}}
{{- if .Values.gateway.messageTimeout -}}
{{- .Values.gateway.messageTimeout -}}
{{- else if ne $given "auto" -}}
{{- $given -}}
{{- else -}}
{{- printf "%ds" (max 1 (ceil (mulf 4 (include "memory.deadline" .)) | int64)) -}}
{{- end -}}
{{- end -}}

{{/* The deadline of a recall, in seconds. */}}
{{- define "memory.deadline" -}}
{{- $recall := default dict .Values.config.recall -}}
{{- $withModel := or (ne (default "off" $recall.query_rewrite) "off") $recall.hyde (eq (default "off" $recall.rerank) "llm") -}}
{{- $deadline := default "auto" $recall.deadline -}}
{{- include "memory.seconds" (ternary (ternary "1.5s" "150ms" (not (empty $withModel))) $deadline (eq $deadline "auto")) -}}
{{- end -}}

{{/* 150ms → 0.15 */}}
{{- define "memory.seconds" -}}
{{- $of := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $of (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{/* Settings within . that hold a secret in plain words, one a line. */}}
{{- define "memory.plainSecrets" -}}
{{- range $key, $value := .within -}}
{{- $path := printf "%s.%v" $.path $key -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "memory.plainSecrets" (dict "within" $value "path" $path) -}}
{{- else if and (has $key (list "password" "sentinel_password" "access_key" "secret" "token")) $value -}}
{{- printf "%s\n" $path -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* memory.milvus.token_file → MEMORY_EXTPROC__MEMORY__MILVUS__TOKEN_FILE */}}
{{- define "memory.settingVariable" -}}
{{- printf "MEMORY_EXTPROC__%s" (. | upper | replace "." "__") -}}
{{- end -}}
