{{- /* The reference of the image. */ -}}
{{- define "semaphore.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end -}}
{{- .Values.image.repository -}}
{{- if .Values.image.digest -}}
@{{ .Values.image.digest }}
{{- else -}}
:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* The text of a setting. Numbers of values are floating-point numbers. */ -}}
{{- define "semaphore.text" -}}
{{- if kindIs "slice" . -}}
{{ join "," . }}
{{- else if kindIs "float64" . -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end -}}

{{- /* The variable of a setting without its prefix, as WG_LISTEN_PORT for wgListenPort. */ -}}
{{- define "semaphore.variable" -}}
{{ regexReplaceAll "[A-Z]+" . "_$0" | upper }}
{{- end -}}

{{- /* The content of the ConfigMap that all programs read. */ -}}
{{- define "semaphore.settings" -}}
{{- $data := dict "SEMAPHORE_CLUSTER_NAME" .Values.cluster "SEMAPHORE_REMOTES" (keys .Values.remotes | sortAlpha | join ",") -}}
{{- range $key, $value := .Values.settings -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $data (print "SEMAPHORE_" (include "semaphore.variable" $key)) (include "semaphore.text" $value) -}}
{{- end -}}
{{- end -}}
{{- range $remote, $settings := .Values.remotes -}}
{{- with get (dict "false" "n, no, off" "true" "y, yes, on") $remote -}}
{{- fail (printf "remotes: the name of a cluster is %s, of which YAML makes %s: write it in quotes" . $remote) -}}
{{- end -}}
{{- $prefix := printf "SEMAPHORE_REMOTE_%s_" ($remote | upper | replace "-" "_") -}}
{{- range $key, $value := $settings -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $data (print $prefix (include "semaphore.variable" $key)) (include "semaphore.text" $value) -}}
{{- end -}}
{{- end -}}
{{- /* Where semaphorectl tokens puts the credentials. */ -}}
{{- if not $settings.kubeconfig -}}
{{- if not $settings.tokenFile -}}
{{- $_ := set $data (print $prefix "TOKEN_FILE") (printf "/etc/semaphore/remotes/%s.token" $remote) -}}
{{- end -}}
{{- if not (or $settings.caURL $settings.caFile) -}}
{{- $_ := set $data (print $prefix "CA_FILE") (printf "/etc/semaphore/remotes/%s.ca.crt" $remote) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $text := .Values.variables -}}
{{- if hasKey $data $name -}}
{{- fail (printf "variables: %s is set already, by cluster, remotes or settings: remove it" $name) -}}
{{- end -}}
{{- $_ := set $data $name $text -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{- /* The name of that ConfigMap, with a hash as kustomize makes it: a change rolls the programs out again. */ -}}
{{- define "semaphore.settingsName" -}}
{{- $data := fromYaml (include "semaphore.settings" .) -}}
{{- $hash := dict "kind" "ConfigMap" "name" "" "data" $data | toJson | sha256sum | trunc 10 -}}
semaphore-{{ $hash | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" }}
{{- end -}}

{{- /* Where pods of a program may run, and who may pull their image: (dict "root" . "program" .Values.policy). */ -}}
{{- define "semaphore.placement" -}}
{{- $fields := pick .program "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{- $_ := set $fields "imagePullSecrets" .root.Values.imagePullSecrets -}}
{{- range $field, $value := $fields }}
{{- if $value }}
{{ dict $field $value | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The image of a container. */ -}}
{{- define "semaphore.container" -}}
image: {{ include "semaphore.image" . | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- /* The container's own token. As the kubelet mounts by default, except for the lifetime: API
       servers make a year of the default's 3607 seconds, and of nothing else. */ -}}
{{- define "semaphore.tokenSources" -}}
sources:
  - serviceAccountToken:
      path: token
      expirationSeconds: 3600
  - configMap:
      name: kube-root-ca.crt
      items:
        - key: ca.crt
          path: ca.crt
  - downwardAPI:
      items:
        - path: namespace
          fieldRef:
            apiVersion: v1
            fieldPath: metadata.namespace
{{- end -}}

{{- /* Refuses items of extraEnv, extraVolumes and extraVolumeMounts that are there already: the API server
       refuses some, and some only with server-side apply. (dict "program" "policy" "pod" SPEC) */ -}}
{{- define "semaphore.once" -}}
{{- $program := .program -}}
{{- $lists := list (list "extraVolumes" "name" .pod.volumes) -}}
{{- range .pod.containers -}}
{{- $lists = concat $lists (list (list "extraEnv" "name" .env) (list "extraVolumeMounts" "mountPath" .volumeMounts)) -}}
{{- end -}}
{{- range $list := $lists -}}
{{- $seen := dict -}}
{{- range last $list -}}
{{- $item := get . (index $list 1) -}}
{{- if hasKey $seen $item -}}
{{- fail (printf "%s.%s: %s is set already, by the chart, by another value or by another item: remove this item" $program (first $list) $item) -}}
{{- end -}}
{{- $_ := set $seen $item true -}}
{{- end -}}
{{- end -}}
{{- end -}}
