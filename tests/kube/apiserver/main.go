// Only the API server of Kubernetes. It has a main package here, because `go install PACKAGE@VERSION` refuses
// the module k8s.io/kubernetes, which has replace directives.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
