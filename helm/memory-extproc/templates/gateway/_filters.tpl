{{/* Control headers of ours that a client may send; what leaves for the model carries none of them. */}}
{{- define "memory.controlHeaders" -}}
- x-memory-retrieve
- x-memory-store
- x-memory-session
- x-memory-compress
- x-memory-incognito
- x-disable-router-memory
- x-memory-signal-fact
- x-memory-signal-tool
- x-memory-signal-greeting
{{- end -}}

{{- define "memory.identityHeaders" -}}
{{- with .Values.gateway.identity -}}
{{- if .userHeader }}
- {{ .userHeader }}
{{- end }}
{{- if .tenantHeader }}
- {{ .tenantHeader }}
{{- end }}
{{- end -}}
{{- range list "roles_header" "projects_header" }}
{{- with dig "api" "trusted_proxy" . "" $.Values.config }}
- {{ lower . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* At the edge: what a client must not say for itself. */}}
{{- define "memory.edgeHeaders" -}}
{{- if ne .Values.gateway.identity.mode "trust" }}
{{- include "memory.identityHeaders" . }}
{{- end }}
{{- if .Values.gateway.stripControlHeaders }}
{{ include "memory.controlHeaders" . }}
{{- end }}
{{- end -}}

{{/* Names the caller's projects, which Envoy's metadata holds, to the memory API; as `memory-extproc envoy-config` writes it. */}}
{{- define "memory.nameProjects" -}}
{{- $header := dig "api" "trusted_proxy" "projects_header" "" .Values.config -}}
{{- with dig "identity" "metadata_projects" "" .Values.config -}}
{{- if $header -}}
{{- $place := splitn ":" 2 . -}}
request_headers_to_add:
  - header: {key: {{ lower $header }}, value: {{ printf "%%DYNAMIC_METADATA(%s:%s)%%" $place._0 (replace "." ":" $place._1) | quote }}}
    append_action: OVERWRITE_IF_EXISTS_OR_ADD
    keep_empty_value: true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "memory.stripFilter" -}}
name: {{ .name }}
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
  mutations:
    request_mutations:
      {{- range (fromYamlArray .headers) }}
      - remove: {{ . }}
      {{- end }}
{{- end -}}

{{/* The memory filter, as `memory-extproc envoy-config` writes it; .cluster is Envoy's name for the sidecar. */}}
{{- define "memory.extProcFilter" -}}
{{- $gateway := .root.Values.gateway -}}
name: memory
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
  grpc_service:
    envoy_grpc:
      cluster_name: {{ .cluster }}
    retry_policy:
      num_retries: 1
      retry_on: unavailable,reset,connect-failure
    {{- if $gateway.affinity.enabled }}
    initial_metadata:
      - key: x-memory-caller
        value: "%DYNAMIC_METADATA(memory_affinity:caller)%"
    {{- end }}
  failure_mode_allow: true
  processing_mode:
    request_header_mode: SEND
    response_header_mode: SEND
    {{- $duplex := eq $gateway.bodies "full-duplex" }}
    request_body_mode: {{ ternary "FULL_DUPLEX_STREAMED" "BUFFERED" $duplex }}
    {{- if not $gateway.observe.enabled }}
    response_body_mode: {{ ternary "FULL_DUPLEX_STREAMED" "STREAMED" $duplex }}
    {{- end }}
    request_trailer_mode: {{ ternary "SEND" "SKIP" $duplex }}
    response_trailer_mode: {{ ternary "SKIP" "SEND" $gateway.observe.enabled }}
  request_attributes:
    - xds.route_name
    - xds.cluster_name
    - request.time
  message_timeout: {{ include "memory.messageTimeout" .root }}
  stat_prefix: memory
  disable_immediate_response: true
  metadata_options:
    forwarding_namespaces:
      untyped:
        {{- if eq $gateway.identity.mode "jwt" }}
        - envoy.filters.http.jwt_authn
        {{- end }}
        - memory
    receiving_namespaces:
      untyped:
        - memory
        {{- if $gateway.observe.enabled }}
        - memory_learning
        {{- end }}
  route_cache_action: RETAIN
{{- end -}}

{{/* The filter that watches, with two filters; it stands before all others. */}}
{{- define "memory.observerFilter" -}}
name: memory_observer
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
  grpc_service:
    envoy_grpc:
      cluster_name: {{ .cluster }}
  failure_mode_allow: true
  observability_mode: true
  deferred_close_timeout: 1s
  processing_mode:
    request_header_mode: SEND
    response_header_mode: SEND
    request_body_mode: STREAMED
    response_body_mode: STREAMED
    request_trailer_mode: SEND
    response_trailer_mode: SEND
  request_attributes:
    - xds.route_name
    - request.time
  stat_prefix: memory_observer
  disable_immediate_response: true
  metadata_options:
    forwarding_namespaces:
      untyped:
        - memory_learning
{{- end -}}

{{/* The caller's header as metadata: the stream to the sidecar can carry that, and the ring goes by it. A route's
     hash policy does not reach the streams of ext_proc. */}}
{{- define "memory.affinityFilter" -}}
name: memory_affinity
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
  request_rules:
    - header: {{ .Values.gateway.identity.userHeader }}
      on_header_present: {metadata_namespace: memory_affinity, key: caller, type: STRING}
{{- end -}}

{{/* What Envoy must know of the sidecar's cluster beside its addresses. */}}
{{- define "memory.clusterPatch" -}}
per_connection_buffer_limit_bytes: {{ int64 .Values.gateway.bufferLimit }}
health_checks:
  - timeout: 1s
    interval: 1s
    unhealthy_threshold: 1
    healthy_threshold: 1
    grpc_health_check:
      service_name: readiness
    no_traffic_interval: 1s
circuit_breakers:
  thresholds:
    - max_connections: {{ .Values.gateway.maxStreams }}
      max_pending_requests: {{ .Values.gateway.maxStreams }}
      max_requests: {{ .Values.gateway.maxStreams }}
common_lb_config:
  healthy_panic_threshold: {}
{{- if .Values.gateway.affinity.enabled }}
load_balancing_policy:
  policies:
    - typed_extension_config:
        name: envoy.load_balancing_policies.ring_hash
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash
          consistent_hashing_lb_config:
            hash_policy:
              - header: {header_name: x-memory-caller}
{{- end }}
{{- end -}}

{{- define "memory.cluster" -}}
{{- $socket := eq .Values.mode "sidecar" -}}
name: memory_extproc
type: {{ ternary "STATIC" "STRICT_DNS" $socket }}
connect_timeout: 1s
load_assignment:
  cluster_name: memory_extproc
  endpoints:
    - lb_endpoints:
        - endpoint:
            address:
              {{- if $socket }}
              pipe:
                path: {{ .Values.socketPath }}/ext_proc.sock
              {{- else }}
              socket_address:
                address: {{ include "memory.serviceHost" . }}
                port_value: {{ .Values.ports.extProc }}
              {{- end }}
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config:
      http2_protocol_options:
        connection_keepalive:
          interval: 30s
          timeout: 5s
{{- if .Values.tls.enabled }}
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    sni: {{ include "memory.serviceHost" . }}
    common_tls_context:
      alpn_protocols: [h2]
      tls_certificates:
        - certificate_chain: {filename: /etc/envoy/memory-extproc/tls.crt}
          private_key: {filename: /etc/envoy/memory-extproc/tls.key}
      validation_context:
        trusted_ca: {filename: /etc/envoy/memory-extproc/ca.crt}
        match_typed_subject_alt_names:
          - san_type: DNS
            matcher: {exact: {{ include "memory.serviceHost" . }}}
{{- end }}
{{ include "memory.clusterPatch" . }}
{{- end -}}

{{/* The router's cache answers by what was asked, not by who asked: an identified caller goes past it. The filter
     is skipped for a request that names nobody. */}}
{{- define "memory.bypassFilter" -}}
name: memory_bypass_cache
typed_config:
  '@type': type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher
  extension_config:
    name: envoy.filters.http.header_mutation
    typed_config:
      '@type': type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
      mutations:
        request_mutations:
          - append:
              header: {key: x-vsr-cache-control, value: bypass}
              append_action: OVERWRITE_IF_EXISTS_OR_ADD
  xds_matcher:
    matcher_list:
      matchers:
        - predicate:
            not_matcher:
              single_predicate:
                input:
                  name: caller
                  typed_config:
                    '@type': type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                    header_name: {{ .Values.gateway.identity.userHeader }}
                value_match:
                  safe_regex: {google_re2: {}, regex: ".+"}
          on_match:
            action:
              name: skip
              typed_config:
                '@type': type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter
{{- end -}}

{{/* How Envoy Gateway reaches the sidecar. */}}
{{- define "memory.backendRefs" -}}
{{- if eq .Values.mode "sidecar" -}}
- group: gateway.envoyproxy.io
  kind: Backend
  name: {{ include "memory.fullname" . }}
{{- else -}}
- name: {{ include "memory.fullname" . }}
  namespace: {{ .Release.Namespace }}
  port: {{ .Values.ports.extProc }}
{{- end }}
{{- end -}}

{{- define "memory.backendSettings" -}}
circuitBreaker:
  maxConnections: {{ .Values.gateway.maxStreams }}
  maxPendingRequests: {{ .Values.gateway.maxStreams }}
  maxParallelRequests: {{ .Values.gateway.maxStreams }}
healthCheck:
  panicThreshold: 0
  active:
    type: GRPC
    grpc:
      service: readiness
    interval: 1s
    timeout: 1s
    unhealthyThreshold: 1
    healthyThreshold: 1
retry:
  numRetries: 1
  retryOn:
    triggers: [unavailable, reset, connect-failure]
{{- end -}}

{{/* What Envoy Gateway's policies apply to. Of one Gateway, its routes of other uses keep their own timeouts and buffers
where gateway.targetRefs names the LLM routes alone. */}}
{{- define "memory.targetRefs" -}}
{{- range default (list (dict "kind" "Gateway" "name" .Values.gateway.name)) .Values.gateway.targetRefs }}
- group: {{ default "gateway.networking.k8s.io" .group }}
  kind: {{ .kind }}
  name: {{ .name }}
  {{- with .sectionName }}
  sectionName: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
