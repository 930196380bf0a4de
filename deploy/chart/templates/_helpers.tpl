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

{{- /* The content of the ConfigMap that all programs read. */ -}}
{{- define "semaphore.settings" -}}
{{- $variables := fromYaml (include "semaphore.variables" .) -}}
{{- $data := dict "SEMAPHORE_CLUSTER_NAME" .Values.cluster "SEMAPHORE_REMOTES" (keys .Values.remotes | sortAlpha | join ",") -}}
{{- range $key, $value := .Values.settings -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $data (get $variables.settings $key) (include "semaphore.text" $value) -}}
{{- end -}}
{{- end -}}
{{- range $remote, $settings := .Values.remotes -}}
{{- with get (dict "false" "n, no, off" "true" "y, yes, on") $remote -}}
{{- fail (printf "remotes: the name of a cluster is %s, of which YAML makes %s: write it in quotes" . $remote) -}}
{{- end -}}
{{- $prefix := printf "SEMAPHORE_REMOTE_%s_" ($remote | upper | replace "-" "_") -}}
{{- range $key, $value := $settings -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $data (print $prefix (get $variables.remotes $key)) (include "semaphore.text" $value) -}}
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
{{- toYaml $data -}}
{{- end -}}

{{- /* The name of that ConfigMap, with a hash as kustomize makes it: a change rolls the programs out again. */ -}}
{{- define "semaphore.settingsName" -}}
{{- $data := fromYaml (include "semaphore.settings" .) -}}
{{- $hash := dict "kind" "ConfigMap" "name" "" "data" $data | toJson | sha256sum | trunc 10 -}}
semaphore-{{ $hash | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" }}
{{- end -}}

{{- /* Refuses items that are there already: field is unique among them, and set says by what a field is set. */ -}}
{{- define "semaphore.once" -}}
{{- range .items -}}
{{- $item := get . $.field -}}
{{- with get $.set $item -}}
{{- fail (printf "%s: %s is set by %s already: remove this item" $.value $item .) -}}
{{- end -}}
{{- $_ := set $.set $item "another item" -}}
{{- end -}}
{{- end -}}
