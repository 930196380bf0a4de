{{- /* The objects of a controller, one in each file. The arguments are a dict:
       root       .
       name       of the program
       value      the key of its values
       secret     the one with the credentials for remote clusters
       identity   whether its environment has its pod, the object of its Events */ -}}
{{- define "semaphore.controller" -}}
{{- if (index .root.Values .value).enabled }}
{{- $deployment := include "semaphore.deployment" . }}
{{- include "semaphore.once" (dict "program" .value "pod" ($deployment | fromYaml).spec.template.spec) }}
{{ $deployment }}
{{- end }}
{{- end -}}

{{- define "semaphore.deployment" -}}
{{- $values := index .root.Values .value -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ .name }}
    app.kubernetes.io/part-of: kube-semaphore
spec:
  # One leader, and one on standby.
  replicas: {{ $values.replicas | int64 }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 1
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ .name }}
        app.kubernetes.io/part-of: kube-semaphore
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ .name }}
      # The container mounts a token of its own.
      automountServiceAccountToken: false
      # Variables of service links look like settings.
      enableServiceLinks: false
      terminationGracePeriodSeconds: 20
      {{- include "semaphore.placement" (dict "root" .root "program" $values) | trim | nindent 6 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: controller
          {{- include "semaphore.container" .root | nindent 10 }}
          command: [/bin/{{ .name }}]
          envFrom:
            - configMapRef:
                name: {{ include "semaphore.settingsName" .root }}
                optional: true
          env:
            {{- if .identity }}
            # The object of its Events.
            - name: SEMAPHORE_POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: SEMAPHORE_POD_UID
              valueFrom:
                fieldRef:
                  fieldPath: metadata.uid
            {{- end }}
            - name: SEMAPHORE_PROBE_SOCKET
              value: /run/semaphore/probe.sock
            {{- if .root.Values.metrics.auth }}
            - name: SEMAPHORE_LISTEN_AUTH
              value: token
            {{- end }}
            {{- with $values.leaving }}
            {{- list (dict "name" "SEMAPHORE_DEPARTED_REMOTES" "value" (join "," .)) | toYaml | nindent 12 }}
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: status
              containerPort: 8080
          # Over a Unix socket in this pod, which no client of the ports can exhaust.
          livenessProbe:
            exec:
              command: [/bin/{{ .name }}, probe, /healthz]
            initialDelaySeconds: 5
            periodSeconds: 20
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            exec:
              command: [/bin/{{ .name }}, probe, /readyz]
            periodSeconds: 10
            timeoutSeconds: 5
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            privileged: false
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: token
              mountPath: /var/run/secrets/kubernetes.io/serviceaccount
              readOnly: true
            - name: probe
              mountPath: /run/semaphore
            - name: remotes
              mountPath: /etc/semaphore/remotes
              readOnly: true
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: token
          projected:
            {{- include "semaphore.tokenSources" .root | nindent 12 }}
        - name: probe
          emptyDir: {}
        # Credentials for remote clusters. A remote without them fails alone, and works
        # as soon as they exist.
        - name: remotes
          secret:
            secretName: {{ .secret | quote }}
            defaultMode: 0440
            optional: true
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{- define "semaphore.disruptions" -}}
{{- if (index .root.Values .value).enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
{{- end -}}

{{- /* Ingress to a controller: metrics and status for pods in namespaces with the label
       semaphore.uw.io/scrape=true, and nothing else. The kubelet's probes don't use the network. Egress
       isn't restricted: the addresses of API servers, of this cluster and of others, differ in each
       installation. */ -}}
{{- define "semaphore.ingress" -}}
{{- if and (index .root.Values .value).enabled .root.Values.networkPolicy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ .name }}
    app.kubernetes.io/part-of: kube-semaphore
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
  policyTypes: [Ingress]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              semaphore.uw.io/scrape: "true"
      ports:
        - protocol: TCP
          port: status
{{- end }}
{{- end -}}
