{{- define "oncegate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "oncegate.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "oncegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "oncegate.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "oncegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "oncegate.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Each manager has a data directory, so each is a shard: "true" or empty. */}}
{{- define "oncegate.sharded" -}}
{{- if has .Values.store.engine (list "wal" "sqlite") -}}true{{- end -}}
{{- end -}}

{{/* The DNS name of a pod of the StatefulSet. Takes a dict of root and pod. */}}
{{- define "oncegate.host" -}}
{{- printf "%s.%s.%s.svc.%s" .pod (include "oncegate.fullname" .root) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/* The name of a pod's shard. Takes a dict of root and pod. */}}
{{- define "oncegate.shard" -}}
{{- if eq .root.Values.shards.names "istio" -}}
{{- printf "outbound|%v||%s" .root.Values.service.port (include "oncegate.host" .) -}}
{{- else -}}
{{- .pod -}}
{{- end -}}
{{- end -}}

{{/* All names, with commas between them. */}}
{{- define "oncegate.shards" -}}
{{- $names := list -}}
{{- range $i := until (int (.Values.shards.listed | default .Values.shards.count)) -}}
{{- $names = append $names (include "oncegate.shard" (dict "root" $ "pod" (printf "%s-%d" (include "oncegate.fullname" $) $i))) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* The Secret of the API's certificate, or empty. */}}
{{- define "oncegate.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- printf "%s-tls" (include "oncegate.fullname" .) -}}
{{- else -}}
{{- .Values.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* Istio and others choose the protocol by the port's name. */}}
{{- define "oncegate.portName" -}}
{{- if include "oncegate.tlsSecret" . -}}https-api{{- else -}}http-api{{- end -}}
{{- end -}}

{{- define "oncegate.adminPortName" -}}
{{- if .Values.tls.admin -}}https-admin{{- else -}}http-admin{{- end -}}
{{- end -}}

{{/* The bytes of a quantity of memory, such as 3Gi, or of a plain number. Empty if it is neither. */}}
{{- define "oncegate.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := kindIs "string" . | ternary . (toJson .) -}}
{{- if regexMatch "^[0-9]+(\\.[0-9]+)?([kMGT]|[KMGT]i)?$" $text -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[A-Za-z]+$" $text)) | int64 -}}
{{- end -}}
{{- end -}}

{{/* The least memory of a manager, in bytes: the bodies of requests; and with the engine wal twice cache-bytes, half of it for the
     Go runtime, and 2 bytes for each record. Records are keys, and jobs of 512 bytes. */}}
{{- define "oncegate.leastMemory" -}}
{{- $bodies := get .Values.settings "max-body-memory-bytes" | default 536870912 | int64 -}}
{{- if eq .Values.store.engine "wal" -}}
{{- $cache := get .Values.settings "cache-bytes" | default 268435456 | int64 -}}
{{- $keys := get .Values.settings "max-entries" | default (div (get .Values.settings "max-bytes" | default 17179869184 | int64) 512) | int64 -}}
{{- $jobs := div (get .Values.settings "job-max-bytes" | default 17179869184 | int64) 512 -}}
{{- add $bodies (mul 2 $cache) (mul 2 (add $keys $jobs)) -}}
{{- else -}}
{{- $bodies -}}
{{- end -}}
{{- end -}}

{{/* Values that contradict each other in ways that a schema cannot say. */}}
{{- define "oncegate.check" -}}
{{- $sharded := include "oncegate.sharded" . -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: must be the registry and name of the manager's image, such as registry.example.com/oncegate/manager" -}}
{{- end -}}
{{- if not (or .Values.auth.existingSecret .Values.tls.clientCA.existingSecret .Values.auth.anonymous) -}}
{{- fail "auth.existingSecret and tls.clientCA.existingSecret are empty: every caller that reaches the port would be an administrator; set one of them, or auth.anonymous to true" -}}
{{- end -}}
{{- if and .Values.auth.anonymous (or .Values.auth.existingSecret .Values.tls.clientCA.existingSecret) -}}
{{- fail "auth.anonymous is true: must be false when auth.existingSecret or tls.clientCA.existingSecret is set, because credentials are then asked for" -}}
{{- end -}}
{{- with dig "limits" "memory" "" .Values.resources -}}
{{- $limit := include "oncegate.bytes" . -}}
{{- if not $limit -}}
{{- fail (printf "resources.limits.memory is %v: must be a number of bytes, or a number with k, M, G, T, Ki, Mi, Gi or Ti" .) -}}
{{- end -}}
{{- $least := include "oncegate.leastMemory" $ -}}
{{- if lt ($limit | int64) ($least | int64) -}}
{{- fail (printf "resources.limits.memory is %v: must be at least %sMi for the settings max-body-memory-bytes, cache-bytes, max-entries, max-bytes and job-max-bytes" . (divf $least 1048576 | ceil | int64 | toString)) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" (include "oncegate.fullname" .)) -}}
{{- fail (printf "the name %q must be that of a Service, which begins with a letter and has only a-z, 0-9 and -: set fullnameOverride" (include "oncegate.fullname" .)) -}}
{{- end -}}
{{- if eq (int .Values.service.port) (int .Values.service.adminPort) -}}
{{- fail (printf "service.port and service.adminPort are both %v: they must differ" .Values.service.port) -}}
{{- end -}}
{{- if and (not $sharded) (not .Values.store.dsn.existingSecret) -}}
{{- fail (printf "store.dsn.existingSecret is empty: the engine %s needs a Secret with its address" .Values.store.engine) -}}
{{- end -}}
{{- if and $sharded .Values.store.dsn.existingSecret -}}
{{- fail (printf "store.dsn.existingSecret is set: the engine %s has no server" .Values.store.engine) -}}
{{- end -}}
{{- if gt (int .Values.shards.listed) (int .Values.shards.count) -}}
{{- fail (printf "shards.listed is %v: must be at most shards.count, %v" .Values.shards.listed .Values.shards.count) -}}
{{- end -}}
{{- if and .Values.ship.googleCredentials.existingSecret (not (hasPrefix "gs://" .Values.ship.to)) -}}
{{- fail "ship.googleCredentials.existingSecret is set: ship.to must begin with gs://" -}}
{{- end -}}
{{- $azure := or (hasPrefix "azblob://" .Values.ship.to) (hasPrefix "az://" .Values.ship.to) -}}
{{- if and .Values.ship.azureCredentials.existingSecret (not $azure) -}}
{{- fail "ship.azureCredentials.existingSecret is set: ship.to must begin with azblob:// or az://" -}}
{{- end -}}
{{- if and .Values.ship.azureAccount (not $azure) -}}
{{- fail "ship.azureAccount is set: ship.to must begin with azblob:// or az://" -}}
{{- end -}}
{{- if and .Values.ship.azureAccount .Values.ship.azureCredentials.existingSecret -}}
{{- fail "ship.azureAccount and ship.azureCredentials.existingSecret are set: only one of them may be, since a connection string names the account" -}}
{{- end -}}
{{- if and .Values.ship.to (ne .Values.store.engine "wal") -}}
{{- fail (printf "ship.to is set: only the engine wal ships its log, not %s" .Values.store.engine) -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled .Values.tls.existingSecret -}}
{{- fail "tls.certManager.enabled and tls.existingSecret: only one of them" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name is empty: name the issuer" -}}
{{- end -}}
{{- if and .Values.tls.clientCA.existingSecret (not (include "oncegate.tlsSecret" .)) -}}
{{- fail "tls.clientCA.existingSecret is set: needs tls.existingSecret or tls.certManager" -}}
{{- end -}}
{{- if and .Values.tls.admin (not (include "oncegate.tlsSecret" .)) -}}
{{- fail "tls.admin is true: needs tls.existingSecret or tls.certManager" -}}
{{- end -}}
{{- if and .Values.tls.clientRoles.existingSecret (not .Values.tls.clientCA.existingSecret) -}}
{{- fail "tls.clientRoles.existingSecret is set: needs tls.clientCA.existingSecret" -}}
{{- end -}}
{{- with .Values.dataCenter -}}
{{- if and .peers (not .origin) -}}
{{- fail "dataCenter.peers is set: needs dataCenter.origin" -}}
{{- end -}}
{{- range tuple "token" "ca" "clientCertificate" -}}
{{- if and (index $.Values.dataCenter . "existingSecret") (not $.Values.dataCenter.peers) -}}
{{- fail (printf "dataCenter.%s.existingSecret is set: needs dataCenter.peers" .) -}}
{{- end -}}
{{- end -}}
{{- range .peers -}}
{{- if and $sharded (gt (int $.Values.shards.count) 1) (not (contains "$(POD)" .url)) -}}
{{- fail (printf "dataCenter.peers: the URL of %s must have $(POD) in it, because each shard pulls from the shard with its name" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.adminFrom) -}}
{{- fail "serviceMonitor.enabled: the NetworkPolicy allows no one to read metrics; name Prometheus in networkPolicy.adminFrom" -}}
{{- end -}}
{{- if and .Values.istio.enabled (or (not $sharded) (ne .Values.shards.names "istio")) -}}
{{- fail "istio.enabled: needs the engine wal or sqlite, and shards.names istio" -}}
{{- end -}}
{{- end -}}
