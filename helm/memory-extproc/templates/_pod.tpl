{{- define "memory.container" -}}
{{- $socket := eq .Values.mode "sidecar" -}}
name: memory-extproc
image: {{ include "memory.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if include "memory.native" . }}
restartPolicy: Always
{{- end }}
args:
  - serve
  - --config
  - /etc/memory-extproc/config/config.yaml
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- if not $socket }}
  - name: grpc
    containerPort: {{ .Values.ports.extProc }}
  {{- end }}
  {{- if .Values.api.enabled }}
  - name: grpc-api
    containerPort: {{ .Values.ports.api }}
  - name: http-api
    containerPort: {{ .Values.ports.console }}
  {{- end }}
  - name: http
    containerPort: {{ .Values.ports.http }}
env:
  - name: MALLOC_ARENA_MAX
    value: "2"
  {{- range .Values.secrets }}
  - name: {{ include "memory.settingVariable" .setting }}
    value: /etc/memory-extproc/secrets/{{ .setting }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  {{- include "memory.probe" (dict "root" . "service" "liveness" "path" "/healthz") | nindent 2 }}
  periodSeconds: {{ .Values.probes.startup.periodSeconds }}
  failureThreshold: {{ .Values.probes.startup.failureThreshold }}
livenessProbe:
  {{- include "memory.probe" (dict "root" . "service" "liveness" "path" "/healthz") | nindent 2 }}
  periodSeconds: {{ .Values.probes.liveness.periodSeconds }}
  failureThreshold: {{ .Values.probes.liveness.failureThreshold }}
  timeoutSeconds: 5
readinessProbe:
  {{- include "memory.probe" (dict "root" . "service" "readiness" "path" "/readyz") | nindent 2 }}
  periodSeconds: {{ .Values.probes.readiness.periodSeconds }}
  failureThreshold: {{ .Values.probes.readiness.failureThreshold }}
  timeoutSeconds: 2
lifecycle:
  {{- with omit .Values.lifecycle "preStop" }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  preStop:
    {{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
    sleep:
      seconds: {{ .Values.drain.preStop }}
    {{- else }}
    exec:
      command: [python, -c, "import time; time.sleep({{ .Values.drain.preStop }})"]
    {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/memory-extproc/config
    readOnly: true
  - name: data
    mountPath: /var/lib/memory-extproc
  - name: tmp
    mountPath: /tmp
  {{- if $socket }}
  - name: memory-socket
    mountPath: {{ .Values.socketPath }}
  {{- end }}
  {{- if .Values.tls.enabled }}
  - name: tls
    mountPath: /etc/memory-extproc/tls
    readOnly: true
  {{- end }}
  {{- if .Values.secrets }}
  - name: secrets
    mountPath: /etc/memory-extproc/secrets
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* gRPC where the kubelet can speak it: not through mutual TLS, not through a Unix socket. */}}
{{- define "memory.probe" -}}
{{- if or .root.Values.tls.enabled (eq .root.Values.mode "sidecar") -}}
httpGet:
  path: {{ .path }}
  port: {{ .root.Values.ports.http }}
{{- else -}}
grpc:
  port: {{ .root.Values.ports.extProc }}
  service: {{ .service }}
{{- end -}}
{{- end -}}

{{- define "memory.volumes" -}}
- name: config
  configMap:
    name: {{ include "memory.fullname" . }}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "memory.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- if .Values.secrets }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .Values.secrets }}
      - secret:
          name: {{ .secretName }}
          items:
            - key: {{ .key }}
              path: {{ .setting }}
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "memory.dataVolume" -}}
{{- if not (include "memory.claimed" .) }}
- name: data
  emptyDir:
    sizeLimit: {{ .Values.persistence.size }}
{{- else if .Values.persistence.existingClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.persistence.existingClaim }}
{{- end }}
{{- end -}}

{{/* How names are looked up: the jobs ask for the same ones as the server. */}}
{{- define "memory.lookup" -}}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "memory.pod" -}}
metadata:
  labels:
    {{- include "memory.labels" . | nindent 4 }}
    {{- with merge (dict) .Values.podLabels (include "memory.meshLabels" . | fromYaml) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: memory-extproc
    {{- if .Values.rollOnConfigChange }}
    checksum/config: {{ include "memory.config" . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "memory.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add .Values.drain.preStop .Values.drain.announce .Values.drain.longestStream .Values.drain.flush 15 }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with include "memory.lookup" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if ne .Values.mode "daemonset" }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "memory.selector" . | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- with .Values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    -
      {{- include "memory.container" . | nindent 6 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "memory.volumes" . | nindent 4 }}
    {{- with include "memory.dataVolume" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Of the pods that run a command with the server's configuration: what that may name is there too. */}}
{{- define "memory.commandEnv" -}}
env:
  {{- range .Values.secrets }}
  - name: {{ include "memory.settingVariable" .setting }}
    value: /etc/memory-extproc/secrets/{{ .setting }}
  {{- end }}
  - name: MEMORY_EXTPROC__DATA_DIR
    value: /var/lib/memory-extproc
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "memory.commandMounts" -}}
- name: config
  mountPath: /etc/memory-extproc/config
  readOnly: true
- name: data
  mountPath: /var/lib/memory-extproc
- name: tmp
  mountPath: /tmp
{{- if .Values.secrets }}
- name: secrets
  mountPath: /etc/memory-extproc/secrets
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "memory.commandPlace" -}}
enableServiceLinks: false
{{- with include "memory.lookup" . | trim }}
{{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
