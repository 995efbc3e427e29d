{{/* What must not be installed, all of it at once: why, and what instead. */}}
{{- define "memory.refusals" -}}
{{- $v := .Values -}}
{{- $said := list -}}
{{- $lite := include "memory.lite" . -}}
{{- $sqlite := include "memory.sqlite" . -}}
{{- $many := or (gt (int $v.replicas) 1) $v.autoscaling.enabled (eq $v.mode "daemonset") -}}
{{- $what := ternary "mode: daemonset" (ternary "autoscaling.enabled" (printf "replicas: %d" (int $v.replicas)) $v.autoscaling.enabled) (eq $v.mode "daemonset") -}}
{{- $servers := $many -}}
{{- if eq $v.mode "sidecar" -}}
{{- $what = printf "mode: sidecar beside %d Envoy pods (replicas)" (int $v.replicas) -}}
{{- end -}}
{{- if and $v.learner.enabled (not $many) -}}
{{- $many = true -}}
{{- $what = "learner.enabled" -}}
{{- end -}}
{{- if and $many $lite -}}
{{- $said = append $said (printf "%s with Milvus Lite: each pod would have a file of its own, and a person would be remembered by one pod and forgotten by the next. Set config.memory.milvus.address to a Milvus server, or keep one replica." $what) -}}
{{- end -}}
{{- if and $many $sqlite -}}
{{- $said = append $said (printf "%s with the SQLite journal: pods would not see each other's turns and a forget on one would not reach the others. Set config.coordination.url to a Redis, or keep one replica." $what) -}}
{{- end -}}
{{- $files := ternary "Milvus Lite keeps the memories in a file" (ternary "the journal of accepted turns is a file" "turns that wait for Redis, and the audit log, are files" (not (empty $sqlite))) (not (empty $lite)) -}}
{{- if and (ne $v.mode "deployment") $v.persistence.enabled (not $v.persistence.existingClaim) (not $v.persistence.acceptLoss) -}}
{{- $why := ternary "the Envoy pod is not this chart's, so it cannot give it a volume" "a DaemonSet's pods have no claims of their own" (eq $v.mode "sidecar") -}}
{{- $said = append $said (printf "persistence.enabled in mode: %s without persistence.existingClaim, while %s: %s. %s, or write persistence.acceptLoss: true." $v.mode $files $why (ternary "Name a claim, use mode: deployment" "Use mode: deployment" (eq $v.mode "sidecar"))) -}}
{{- end -}}
{{- if and (not $v.persistence.enabled) (not $v.persistence.acceptLoss) -}}
{{- $said = append $said (printf "persistence.enabled: false while %s: it would be lost with the pod. Turn persistence on, or write persistence.acceptLoss: true." $files) -}}
{{- end -}}
{{- if and $many $v.persistence.enabled $v.persistence.existingClaim -}}
{{- $said = append $said (printf "persistence.existingClaim with %s: one claim serves one pod, each holds its directory alone. Leave it empty, and each pod gets its own." $what) -}}
{{- end -}}
{{- if and $v.api.enabled (not (include "memory.claimed" .)) (not (dig "api" "audit" "directory" "" $v.config)) -}}
{{- $said = append $said "api.enabled with the audit log on an emptyDir: who read or erased whose memories would be lost with the pod. Turn persistence on in mode: deployment, name persistence.existingClaim, or set config.api.audit.directory to a volume of yours (extraVolumes)." -}}
{{- end -}}
{{- if and $v.api.enabled $many (not (dig "api" "secret" "" $v.config)) -}}
{{- $given := false -}}
{{- range $v.secrets -}}{{- if eq .setting "api.secret_file" -}}{{- $given = true -}}{{- end -}}{{- end -}}
{{- if not $given -}}
{{- $said = append $said (printf "api.enabled with %s and no api.secret: each pod would make its own, and a page token of one would be refused by the next. Add {setting: api.secret_file, secretName: …, key: …} to secrets." $what) -}}
{{- end -}}
{{- end -}}
{{- if and (ne $v.mode "sidecar") (not $v.tls.enabled) (not $v.networkPolicy.enabled) (not $v.tls.acceptPlaintext) -}}
{{- $said = append $said "tls.enabled: false and networkPolicy.enabled: false: whoever reaches the pod could read and write anybody's memories. Turn one of them on, or write tls.acceptPlaintext: true." -}}
{{- end -}}
{{- if and $v.tls.enabled (empty $v.tls.allowedNames) -}}
{{- $said = append $said "tls.enabled without tls.allowedNames: any certificate of that authority could speak as Envoy. Name the SANs of Envoy's certificate." -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.certManager.enabled) (not $v.tls.secretName) -}}
{{- $said = append $said "tls.enabled without a certificate: name a secret in tls.secretName, or turn on tls.certManager." -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuerRef.name) -}}
{{- $said = append $said "tls.certManager.enabled without tls.certManager.issuerRef.name: name the Issuer or ClusterIssuer." -}}
{{- end -}}
{{- if and $v.tls.enabled (eq $v.mode "sidecar") -}}
{{- $said = append $said "tls.enabled in mode: sidecar: there is no network between Envoy and the Unix socket. Turn it off." -}}
{{- end -}}
{{- if and $v.tls.enabled (has $v.gateway.type (list "envoy-gateway" "envoy-ai-gateway")) -}}
{{- $said = append $said (printf "tls.enabled with gateway.type: %s: a client certificate towards an ext_proc Service is not among what this chart can tell that gateway. Use a service mesh's mutual TLS, or gateway.type: raw." $v.gateway.type) -}}
{{- end -}}
{{- if and $v.api.enabled (not (dig "api" "auth" "" $v.config)) -}}
{{- $said = append $said "api.enabled without config.api.auth: nobody could be told from anybody else. Say how callers prove who they are." -}}
{{- end -}}
{{- if and $v.api.enabled (not $v.tls.enabled) (not (dig "api" "insecure" false $v.config)) (not (dig "api" "tls" "cert" "" $v.config)) -}}
{{- $said = append $said "api.enabled without tls.enabled: whoever listens on the network reads people's memories and credentials. Turn TLS on, or write config.api.insecure: true." -}}
{{- end -}}
{{- if and $v.api.route.enabled (not $v.api.enabled) -}}
{{- $said = append $said "api.route.enabled without api.enabled: the Gateway would find nothing to lead to. Turn the API on." -}}
{{- end -}}
{{- if and $v.api.route.enabled (eq $v.gateway.type "none") -}}
{{- $said = append $said "api.route.enabled with gateway.type: none: there is no Gateway to put a route into. Name its type." -}}
{{- end -}}
{{- if and $v.api.route.enabled $v.tls.enabled -}}
{{- $said = append $said "api.route.enabled with tls.enabled: the API would ask the Gateway for a client certificate, and a route cannot name one. Use a mesh's mutual TLS with tls.enabled: false and config.api.insecure: true." -}}
{{- end -}}
{{- $gatewayApi := has $v.gateway.type (list "envoy-gateway" "envoy-ai-gateway" "istio") -}}
{{- if and $v.api.route.enabled (eq $v.mode "sidecar") $gatewayApi -}}
{{- $said = append $said (printf "api.route.enabled in mode: sidecar with gateway.type: %s: the API listens in Envoy's own pods, of which this chart has no Service to lead to. Use mode: deployment, or a Service of yours and extraObjects." $v.gateway.type) -}}
{{- end -}}
{{- if and $v.api.route.enabled (ne $v.mode "sidecar") (not (empty (dig "api" "auth" list $v.config))) (not (has "jwt" (dig "api" "auth" list $v.config))) (not (has "api_key" (dig "api" "auth" list $v.config))) -}}
{{- $said = append $said (printf "api.route.enabled with config.api.auth: %s: the Gateway is no peer on the pod's own machine and shows no client certificate, so nobody could be told from anybody else. Add jwt or api_key." (toJson (dig "api" "auth" list $v.config))) -}}
{{- end -}}
{{- if and $v.api.route.enabled (has "none" (dig "api" "auth" list $v.config)) -}}
{{- $said = append $said "api.route.enabled with none in config.api.auth: whoever reaches the Gateway could read and erase anybody's memories. Remove none; use jwt or api_key." -}}
{{- end -}}
{{- if and $v.api.route.page (not $v.api.route.enabled) -}}
{{- $said = append $said "api.route.page without api.route.enabled: no route would lead to the page. Turn the route on." -}}
{{- end -}}
{{- if and $v.api.route.page (empty $v.api.route.hostnames) -}}
{{- $said = append $said "api.route.page without api.route.hostnames: the page answers only to names that it knows, or any site could speak to it through a reader's browser. Name its hosts in api.route.hostnames." -}}
{{- end -}}
{{- if and $v.api.route.page (hasKey (default dict $v.config.console) "hosts") -}}
{{- $said = append $said "config.console.hosts beside api.route.page: the chart writes it from api.route.hostnames. Say it once, there." -}}
{{- end -}}
{{- if and $v.api.route.enabled (eq $v.gateway.type "istio") $v.gateway.istio.selector (empty $v.api.route.hostnames) -}}
{{- $said = append $said "api.route.enabled with gateway.istio.selector and without api.route.hostnames: a VirtualService needs the names that it is for. Name them in api.route.hostnames." -}}
{{- end -}}
{{- $meshed := ne $v.gateway.istio.mesh "none" -}}
{{- if and (or $meshed $v.gateway.istio.selector) (ne $v.gateway.type "istio") -}}
{{- $said = append $said (printf "gateway.istio with gateway.type: %s: only Istio's gateway reads it. Set gateway.type: istio, or leave it out." $v.gateway.type) -}}
{{- end -}}
{{- if and $meshed $v.tls.enabled -}}
{{- $said = append $said (printf "gateway.istio.mesh: %s with tls.enabled: the mesh encrypts already, and a certificate inside of its own would be asked for by nobody. Turn tls.enabled off, or gateway.istio.mesh to none." $v.gateway.istio.mesh) -}}
{{- end -}}
{{- if and $meshed (eq $v.mode "sidecar") -}}
{{- $said = append $said (printf "gateway.istio.mesh: %s in mode: sidecar: there is no network between Envoy and the Unix socket. Leave it at none." $v.gateway.istio.mesh) -}}
{{- end -}}
{{- if and $v.gateway.istio.selector $v.gateway.targetRefs -}}
{{- $said = append $said "gateway.istio.selector beside gateway.targetRefs: Istio takes one of them. Leave targetRefs out for a classic gateway, the selector for one of the Gateway API." -}}
{{- end -}}
{{- if and $v.podDisruptionBudget.enabled $servers (ne $v.mode "sidecar") (ge (int $v.podDisruptionBudget.maxUnavailable) (int (ternary $v.autoscaling.minReplicas $v.replicas $v.autoscaling.enabled))) (ne $v.mode "daemonset") -}}
{{- $said = append $said (printf "podDisruptionBudget.maxUnavailable: %d lets every pod be away at the same time. Make it less than the number of pods." (int $v.podDisruptionBudget.maxUnavailable)) -}}
{{- end -}}
{{- range $name, $scaling := dict "autoscaling" $v.autoscaling "learner.autoscaling" (ternary $v.learner.autoscaling dict $v.learner.enabled) -}}
{{- if $scaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- $said = append $said (printf "%s.minReplicas: %d is more than %s.maxReplicas: %d." $name (int $scaling.minReplicas) $name (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and $scaling.enabled $scaling.keda.enabled (not $scaling.keda.prometheus) -}}
{{- $said = append $said (printf "%s.keda.enabled without %s.keda.prometheus: KEDA has nowhere to ask. Give Prometheus' address, such as http://prometheus.monitoring.svc:9090." $name $name) -}}
{{- end -}}
{{- if and $scaling.keda.enabled (not $scaling.enabled) -}}
{{- $said = append $said (printf "%s.keda.enabled without %s.enabled: nothing would be scaled. Turn on both." $name $name) -}}
{{- end -}}
{{- $byAge := and $scaling.keda.enabled (or (not $v.learner.enabled) (eq $name "learner.autoscaling")) -}}
{{- if and $scaling.enabled (not $byAge) (not $scaling.cpu) (not $scaling.recallSaturation) (not $scaling.journalDepth) -}}
{{- $said = append $said (printf "%s.enabled without a metric: set cpu, recallSaturation or journalDepth." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.learner.enabled (hasKey $v.config "role") -}}
{{- $said = append $said "config.role beside learner.enabled: the chart gives serving pods the role serve and learning pods the role learn. Remove config.role." -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (ne $v.mode "deployment") -}}
{{- $said = append $said (printf "autoscaling.enabled in mode: %s: there is nothing to scale. Use mode: deployment." $v.mode) -}}
{{- end -}}
{{- if and (eq $v.gateway.identity.mode "jwt") (not (and $v.gateway.identity.jwt.issuer $v.gateway.identity.jwt.audience $v.gateway.identity.jwt.jwksUri)) (ne $v.gateway.type "none") -}}
{{- $said = append $said "gateway.identity.mode: jwt without issuer, audience and jwksUri: a token could not be verified. Give all three in gateway.identity.jwt." -}}
{{- end -}}
{{- if and $v.gateway.affinity.enabled (has $v.gateway.type (list "none" "envoy-gateway" "envoy-ai-gateway")) -}}
{{- $said = append $said (printf "gateway.affinity.enabled with gateway.type: %s: its consistent hashing goes by a route's policy, which does not reach the streams of ext_proc, so nothing would be bound. Leave it off, or use istio, vllm-semantic-router or raw." $v.gateway.type) -}}
{{- end -}}
{{- if and (eq $v.gateway.bodies "full-duplex") (has $v.gateway.type (list "envoy-gateway" "envoy-ai-gateway")) -}}
{{- $said = append $said (printf "gateway.bodies: full-duplex with gateway.type: %s: that gateway does not let it fail open, so the model would be away whenever memory is. Leave it at buffered." $v.gateway.type) -}}
{{- end -}}
{{- $eg := has $v.gateway.type (list "envoy-gateway" "envoy-ai-gateway") -}}
{{- $routes := false -}}
{{- range $v.gateway.targetRefs -}}{{- if ne .kind "Gateway" -}}{{- $routes = true -}}{{- end -}}{{- end -}}
{{- if and $routes (eq $v.gateway.type "istio") -}}
{{- $said = append $said "gateway.targetRefs with a route and gateway.type: istio: an EnvoyFilter applies to a whole Gateway. Name Gateways only." -}}
{{- end -}}
{{- if and $v.gateway.targetRefs (not $eg) (not (has $v.gateway.type (list "none" "istio"))) -}}
{{- $said = append $said (printf "gateway.targetRefs with gateway.type: %s: only Envoy Gateway's policies and Istio's have them. Use gateway.name, or the route's own filter configuration." $v.gateway.type) -}}
{{- end -}}
{{- if and $routes (eq $v.gateway.type "envoy-ai-gateway") -}}
{{- $said = append $said "gateway.targetRefs with a route and gateway.type: envoy-ai-gateway: the AI gateway picks its route only after its own filter ran, and memory must stand before that. Name Gateways only." -}}
{{- end -}}
{{- if and $v.gateway.mergeType (not $routes) -}}
{{- $said = append $said "gateway.mergeType without a route in gateway.targetRefs: a policy of a Gateway has no parent to merge with. Leave it empty, or name routes." -}}
{{- end -}}
{{- if and $eg (not $v.gateway.policies.clientTraffic.create) (not $v.gateway.policies.clientTraffic.existing) -}}
{{- $said = append $said "gateway.policies.clientTraffic.create: false without its existing: nothing would remove the headers by which a client could name itself somebody else, and bodies beyond 32 KiB would get 413. Name the ClientTrafficPolicy that does both." -}}
{{- end -}}
{{- if and (or (eq $v.gateway.type "envoy-ai-gateway") (and $eg (eq $v.mode "sidecar"))) (not $v.gateway.policies.envoyProxy.create) (not $v.gateway.policies.envoyProxy.existing) -}}
{{- $said = append $said "gateway.policies.envoyProxy.create: false without its existing: the order of filters, or the sidecar's container, would be nobody's to set. Name the EnvoyProxy that has it." -}}
{{- end -}}
{{- if and $eg (eq $v.gateway.identity.mode "jwt") (not $v.gateway.policies.security.create) (not $v.gateway.policies.security.existing) -}}
{{- $said = append $said "gateway.policies.security.create: false with gateway.identity.mode: jwt and without its existing: no token would be verified. Name the SecurityPolicy that verifies it and writes the claims into the headers of gateway.identity." -}}
{{- end -}}
{{- if and (ne $v.gateway.type "none") (not $v.gateway.failOpen) -}}
{{- $said = append $said "gateway.failOpen: false: the model would be away whenever memory is. This chart does not offer it; memory is an enhancement." -}}
{{- end -}}
{{- if ne $v.gateway.type "none" -}}
{{- range $key, $ours := dict "user_header" $v.gateway.identity.userHeader "tenant_header" $v.gateway.identity.tenantHeader -}}
{{- $theirs := dig "identity" $key $ours $v.config -}}
{{- if ne (lower $theirs) (lower $ours) -}}
{{- $said = append $said (printf "config.identity.%s: %s is not the header that the gateway strips, %s: a client could send it and be whoever it names. Say it once, in gateway.identity.%s." $key (quote $theirs) (quote $ours) (get (dict "user_header" "userHeader" "tenant_header" "tenantHeader") $key)) -}}
{{- end -}}
{{- end -}}
{{- $body := dig "limits" "request_body" "4MiB" $v.config -}}
{{- $bytes := mul (regexFind "^[0-9]+" $body | int64) (get (dict "B" 1 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824) (regexFind "[A-Za-z]+$" $body) | int64) -}}
{{- if gt $bytes (int64 $v.gateway.bufferLimit) -}}
{{- $said = append $said (printf "config.limits.request_body: %s is more than gateway.bufferLimit: %d, and Envoy answers what is larger with 413. Raise gateway.bufferLimit too." $body (int64 $v.gateway.bufferLimit)) -}}
{{- end -}}
{{- $patience := dig "envoy" "message_timeout" "auto" $v.config -}}
{{- if and $v.gateway.messageTimeout (ne $patience "auto") (ne $patience $v.gateway.messageTimeout) -}}
{{- $said = append $said (printf "config.envoy.message_timeout: %s is not gateway.messageTimeout: %s. Say it once, in gateway.messageTimeout." $patience $v.gateway.messageTimeout) -}}
{{- end -}}
{{- end -}}
{{- if le (float64 (include "memory.seconds" (include "memory.messageTimeout" .))) (float64 (include "memory.deadline" .)) -}}
{{- $said = append $said (printf "gateway.messageTimeout: %s is not more than the deadline of a recall, %ss: Envoy would give memory up before it answers. Raise gateway.messageTimeout, leave it empty, or lower config.recall.deadline." (include "memory.messageTimeout" .) (include "memory.deadline" .)) -}}
{{- end -}}
{{- range $path := compact (splitList "\n" (include "memory.plainSecrets" (dict "within" $v.config "path" "config"))) -}}
{{- $said = append $said (printf "%s in plain words: it would stand in a ConfigMap. Put it into a Secret, and name that in secrets ({setting: %s_file, secretName: …, key: …}) or in extraEnv." $path (trimPrefix "config." $path)) -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@]*@" (dig "coordination" "url" "" $v.config) -}}
{{- $said = append $said "config.coordination.url with a password: it would stand in a ConfigMap. Put it into a Secret, and name that in secrets ({setting: coordination.password_file, secretName: …, key: …})." -}}
{{- end -}}
{{- $role := dig "role" "all" $v.config -}}
{{- if and (ne $role "all") (or $lite $sqlite) -}}
{{- $said = append $said (printf "config.role: %s with files: memories or a journal in files belong to one process, which both serves and learns. Set config.memory.milvus.address and config.coordination.url, or remove config.role." $role) -}}
{{- end -}}
{{- if and (eq $role "learn") (ne $v.gateway.type "none") -}}
{{- $said = append $said (printf "config.role: learn with gateway.type: %s: a learning pod takes no requests, so all of them would pass without memory. Use learner.enabled, which makes both kinds of pods, or gateway.type: none." $v.gateway.type) -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled -}}
{{- $said = append $said "metrics.serviceMonitor.enabled beside metrics.podMonitor.enabled: each pod would be scraped twice, and sums would be doubled. Keep one of them." -}}
{{- end -}}
{{- range $key := list "listen" "tls" "data_dir" "shutdown" -}}
{{- if hasKey $v.config $key -}}
{{- $said = append $said (printf "config.%s is the chart's to say: use %s." $key (get (dict "listen" "ports and api.enabled" "tls" "tls" "data_dir" "persistence" "shutdown" "drain") $key)) -}}
{{- end -}}
{{- end -}}
{{- $files := or $lite $sqlite -}}
{{- $stopped := and (eq (int $v.replicas) 0) (not $v.autoscaling.enabled) (eq $v.mode "deployment") -}}
{{- if and (eq (int $v.replicas) 0) (ne $v.mode "deployment") -}}
{{- $said = append $said (printf "replicas: 0 in mode: %s: there is nothing that it would stop. Scale Envoy's own workload, or use mode: deployment." $v.mode) -}}
{{- end -}}
{{- range $name, $job := dict "backup" $v.backup "restore" $v.restore -}}
{{- if and $job.enabled (not $job.claimName) -}}
{{- $said = append $said (printf "%s.enabled without %s.claimName: name the claim of the copies." $name $name) -}}
{{- end -}}
{{- if and $job.enabled $files (not (include "memory.claimed" $)) -}}
{{- $said = append $said (printf "%s.enabled while the pod's files are on no claim: there is nothing that a Job could mount. Turn persistence on in mode: deployment, or name persistence.existingClaim." $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.backup.enabled $files (not $stopped) -}}
{{- $said = append $said "backup.enabled while memories or the journal are files: one process holds them, and a copy beside it would be of no one moment. Install with replicas: 0 and backup.schedule: \"\" until the Job has ended, or take a VolumeSnapshot of the claim; beside a Milvus server and Redis it needs neither." -}}
{{- end -}}
{{- if and $v.backup.enabled $files $v.backup.schedule -}}
{{- $said = append $said "backup.schedule while memories or the journal are files: the pod would have to be stopped each time. Set backup.schedule: \"\" for one copy, or take VolumeSnapshots of the claim." -}}
{{- end -}}
{{- if and $v.restore.enabled (not $v.restore.folder) -}}
{{- $said = append $said "restore.enabled without restore.folder: name the copy, such as 20260801-024100." -}}
{{- end -}}
{{- if and $v.restore.enabled (not $stopped) -}}
{{- $said = append $said "restore.enabled while pods serve: they would learn beside it and hold what it replaces. Install with replicas: 0 and autoscaling.enabled: false until the Job has ended." -}}
{{- end -}}
{{- if hasKey $v.lifecycle "preStop" -}}
{{- $said = append $said "lifecycle.preStop is the chart's to say: use drain.preStop, which terminationGracePeriodSeconds counts too." -}}
{{- end -}}
{{- if and $v.adoptJournal.enabled (not $v.adoptJournal.claimName) -}}
{{- $said = append $said "adoptJournal.enabled without adoptJournal.claimName: name the claim that holds the journal." -}}
{{- end -}}
{{- if and $v.adoptJournal.enabled $sqlite -}}
{{- $said = append $said "adoptJournal.enabled without config.coordination.url: the turns would move into a journal of the Job's own and end with it. Set config.coordination.url to a Redis; a single pod takes up its own journal from its own claim (persistence.existingClaim)." -}}
{{- end -}}
{{- if and $v.retentionJob.enabled (or $lite $sqlite) -}}
{{- $said = append $said "retentionJob.enabled without a Milvus server and Redis: a pod of its own reaches neither the file with the memories nor what was forgotten of them. Set config.memory.milvus.address and config.coordination.url, or leave it to the sidecar (config.retention.every)." -}}
{{- end -}}
{{- if $said -}}
{{- fail (printf "\n\nThese values must not be installed:\n- %s\n" (join "\n- " $said)) -}}
{{- end -}}
{{- end -}}
