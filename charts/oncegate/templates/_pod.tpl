{{/* The pod of both the StatefulSet and the Deployment. */}}
{{- define "oncegate.pod" -}}
{{- $sharded := include "oncegate.sharded" . -}}
{{- $tls := include "oncegate.tlsSecret" . -}}
{{- $secrets := dict "auth" .Values.auth.existingSecret "encryption" .Values.encryption.existingSecret "tls" $tls "client-ca" .Values.tls.clientCA.existingSecret "client-roles" .Values.tls.clientRoles.existingSecret "peer-token" .Values.dataCenter.token.existingSecret "peer-ca" .Values.dataCenter.ca.existingSecret "google-credentials" .Values.ship.googleCredentials.existingSecret "peer-certificate" .Values.dataCenter.clientCertificate.existingSecret -}}
metadata:
  # Without the chart's version, which would restart all pods with every new chart.
  labels:
    {{- include "oncegate.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "oncegate.serviceAccount" . }}
  # The manager does not talk to Kubernetes.
  automountServiceAccountToken: false
  # Variables for Services would begin with ONCEGATE_, as the manager's own do.
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  containers:
  - name: manager
    {{- if .Values.image.digest }}
    image: {{ printf "%s@%s" .Values.image.repository .Values.image.digest | quote }}
    {{- else }}
    image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
    {{- end }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    env:
    - name: POD
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    {{- with .Values.store.dsn }}
    {{- if .existingSecret }}
    - name: ONCEGATE_STORE_DSN
      valueFrom:
        secretKeyRef:
          name: {{ .existingSecret }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
    {{- if .Values.ship.googleCredentials.existingSecret }}
    - name: GOOGLE_APPLICATION_CREDENTIALS
      value: /etc/oncegate/google-credentials/{{ .Values.ship.googleCredentials.key }}
    {{- end }}
    {{- with .Values.ship.azureAccount }}
    - name: AZURE_STORAGE_ACCOUNT
      value: {{ . | quote }}
    {{- end }}
    {{- with .Values.ship.azureCredentials }}
    {{- if .existingSecret }}
    - name: AZURE_STORAGE_CONNECTION_STRING
      valueFrom:
        secretKeyRef:
          name: {{ .existingSecret }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .Values.extraEnvFrom }}
    envFrom:
    {{- toYaml . | nindent 4 }}
    {{- end }}
    args:
    - serve
    - --store={{ .Values.store.engine }}
    - --listen=0.0.0.0:{{ .Values.service.port }}
    - --admin=0.0.0.0:{{ .Values.service.adminPort }}
    {{- if $sharded }}
    - --data-dir=/var/lib/oncegate/data
    - {{ printf "--shard=%s" (include "oncegate.shard" (dict "root" . "pod" "$(POD)")) | quote }}
    - {{ printf "--shards=%s" (include "oncegate.shards" .) | quote }}
    {{- with .Values.shards.version }}
    - --shards-version={{ int . }}
    {{- end }}
    {{- with .Values.ship.to }}
    - {{ printf "--ship-to=%s/$(POD)" (trimSuffix "/" .) | quote }}
    {{- end }}
    {{- else }}
    {{- with .Values.shared.shard }}
    - {{ printf "--shard=%s" . | quote }}
    {{- end }}
    {{- if not (hasKey .Values.settings "drain-delay-seconds") }}
    # Until the endpoints of the Service no longer have the pod.
    - --drain-delay-seconds=5
    {{- end }}
    {{- end }}
    {{- if .Values.auth.existingSecret }}
    - --auth-token-file=/etc/oncegate/auth/{{ .Values.auth.key }}
    {{- end }}
    {{- if .Values.encryption.existingSecret }}
    - --encryption-key-file=/etc/oncegate/encryption/{{ .Values.encryption.key }}
    {{- end }}
    {{- if $tls }}
    - --tls-cert=/etc/oncegate/tls/tls.crt
    - --tls-key=/etc/oncegate/tls/tls.key
    {{- end }}
    {{- if .Values.tls.admin }}
    - --admin-tls-cert=/etc/oncegate/tls/tls.crt
    - --admin-tls-key=/etc/oncegate/tls/tls.key
    {{- end }}
    {{- if .Values.tls.clientCA.existingSecret }}
    - --client-ca=/etc/oncegate/client-ca/{{ .Values.tls.clientCA.key }}
    {{- end }}
    {{- if .Values.tls.clientRoles.existingSecret }}
    - --client-roles-file=/etc/oncegate/client-roles/{{ .Values.tls.clientRoles.key }}
    {{- end }}
    {{- with .Values.dataCenter }}
    {{- with .origin }}
    - {{ printf "--origin=%s" . | quote }}
    {{- end }}
    {{- range .peers }}
    - {{ printf "--peer=%s=%s" .name .url | quote }}
    {{- end }}
    {{- if .token.existingSecret }}
    - --peer-token-file=/etc/oncegate/peer-token/{{ .token.key }}
    {{- end }}
    {{- if .ca.existingSecret }}
    - --peer-ca=/etc/oncegate/peer-ca/{{ .ca.key }}
    {{- end }}
    {{- if .clientCertificate.existingSecret }}
    - --peer-cert=/etc/oncegate/peer-certificate/tls.crt
    - --peer-key=/etc/oncegate/peer-certificate/tls.key
    {{- end }}
    {{- end }}
    {{- /* As JSON, or large numbers would be written as 1e+06. */}}
    {{- range $name, $value := .Values.settings }}
    - {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
    {{- end }}
    {{- range .Values.extraArgs }}
    - {{ . | quote }}
    {{- end }}
    ports:
    - name: {{ include "oncegate.portName" . }}
      containerPort: {{ .Values.service.port }}
    - name: {{ include "oncegate.adminPortName" . }}
      containerPort: {{ .Values.service.adminPort }}
    # The listener for administrators has no limits that a busy API could reach.
    startupProbe:
      httpGet:
        path: /readyz
        port: {{ include "oncegate.adminPortName" . }}
        {{- if .Values.tls.admin }}
        scheme: HTTPS
        {{- end }}
      periodSeconds: 5
      failureThreshold: {{ .Values.startupProbe.failureThreshold }}
    livenessProbe:
      httpGet:
        path: /healthz
        port: {{ include "oncegate.adminPortName" . }}
        {{- if .Values.tls.admin }}
        scheme: HTTPS
        {{- end }}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet:
        path: /readyz
        port: {{ include "oncegate.adminPortName" . }}
        {{- if .Values.tls.admin }}
        scheme: HTTPS
        {{- end }}
      periodSeconds: 5
      timeoutSeconds: 5
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    volumeMounts:
    {{- if $sharded }}
    - name: data
      mountPath: /var/lib/oncegate
    {{- end }}
    {{- range $name, $secret := $secrets }}
    {{- if $secret }}
    - name: {{ $name }}
      mountPath: /etc/oncegate/{{ $name }}
      readOnly: true
    {{- end }}
    {{- end }}
    - name: tmp
      mountPath: /tmp
  volumes:
  {{- range $name, $secret := $secrets }}
  {{- if $secret }}
  - name: {{ $name }}
    secret:
      secretName: {{ $secret }}
      defaultMode: 0440
  {{- end }}
  {{- end }}
  - name: tmp
    emptyDir: {}
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
  topologySpreadConstraints:
  {{- with .Values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "oncegate.selector" . | nindent 8 }}
  {{- end }}
{{- end -}}
