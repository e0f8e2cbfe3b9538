{{- /* The labels of a part, and those by which its pods are selected. */ -}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "weir.image" -}}
{{- $image := .Values.image }}
{{- $name := required "image.repository must be set: there is no published image yet; push the one that `make dist` builds" $image.repository }}
{{- if $image.digest }}{{ $name }}@{{ $image.digest }}{{ else }}{{ $name }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The configuration of weir-kube: `controller.config`, and the keys that other values determine. */ -}}
{{- define "weir.controller" -}}
{{- $config := deepCopy .Values.controller.config }}
{{- $nodes := list }}
{{- range $name, $node := .Values.nodes }}
{{- $one := dict "name" $name "kubernetes_node" $name "url" $node.url "token" "/etc/weir-control/token"
    "certificates" "/etc/weir-tls/ca.crt" }}
{{- with $node.zone }}{{ $_ := set $one "zone" . }}{{ end }}
{{- $nodes = append $nodes $one }}
{{- end }}
{{- range $config.nodes }}{{ $nodes = append $nodes . }}{{ end }}
{{- if $nodes }}{{ $_ := set $config "nodes" $nodes }}{{ end }}
{{- $_ := set $config "listen" (printf "0.0.0.0:%v" .Values.controller.port) }}
{{- $_ := set $config "lease" (dict "namespace" .Release.Namespace "name" (printf "%s-kube" .Release.Name)) }}
{{- toYaml $config }}
{{- end }}

{{- /* What a probe requests. These pods are in the host's network, so the kubelet reaches 127.0.0.1 too. */ -}}
{{- define "weir.probe" -}}
{{- $port := regexFind "[0-9]+$" .metrics }}
{{- $host := trimSuffix (printf ":%s" $port) .metrics | trimAll "[]" -}}
httpGet:
  path: {{ .path }}
  port: {{ $port }}
  {{- if not (has $host (list "0.0.0.0" "::")) }}
  host: {{ $host | quote }}
  {{- end }}
{{- end }}
