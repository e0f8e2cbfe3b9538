// Runs the part of the Gateway API's conformance suite that needs no running pods: conditions, attachment and
// conflicts. `make test-kube` runs it beside an API server, weir-kube and its nodes.
package conformance

import (
	"context"
	"embed"
	"flag"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	upstream "sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

//go:embed base.yaml
var base embed.FS

const http = "its gateways have HTTP listeners, which weir does not serve"
const traffic = "each of its parts needs answers from pods"

// Tests of the tested features that are not run, with the reason.
var notRun = map[string]string{
	"GatewayInvalidRouteKind":                   http,
	"GatewayInvalidTLSConfiguration":            http,
	"GatewayListenerUnsupportedProtocol":        http,
	"GatewayModifyListeners":                    http,
	"GatewayObservedGenerationBump":             http,
	"GatewaySecretInvalidReferenceGrant":        http,
	"GatewaySecretMissingReferenceGrant":        http,
	"GatewaySecretReferenceGrantAllInNamespace": http,
	"GatewaySecretReferenceGrantSpecific":       http,
	"TCPRouteInvalidNonTCPListener":             http,
	"TCPRouteParentRefPortAndSectionName":       traffic,
	"UDPRouteNotAllowedByListeners":             "its gateway has a TLS listener, which weir does not serve",
	"UDPRouteParentRefPortAndSectionName":       traffic,
}

// The parts of other tests that need answers from pods.
var parts = []string{
	"TCPRouteMultipleRoutesAttachment/Only_the_oldest",
	"TCPRouteParentRefAttachAll/Listener_",
	"TCPRouteReferenceGrant/TCP_request",
	"TCPRouteWeightedRouting/TCP_traffic",
	"UDPRouteMultipleRoutesAttachment/Only_the_oldest",
	"UDPRouteParentRefAttachAllListeners/UDP_echo",
	"UDPRouteReferenceGrant/UDP_echo",
	"UDPRoute/Simple_UDP",
	"UDPRouteWeightedRouting/UDP_traffic",
}

func TestMain(m *testing.M) {
	flag.Parse()
	var skipped []string
	for _, part := range parts {
		test, rest, _ := strings.Cut(part, "/")
		skipped = append(skipped, "^TestConformance$/^"+test+"$/^"+rest)
	}
	if err := flag.Set("test.skip", strings.Join(skipped, "|")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	options := upstream.DefaultOptions(t)
	options.BaseManifests = "base.yaml"
	options.ManifestFS = []fs.FS{base, &upstream.Manifests}
	options.CleanupBaseResources = false
	all, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err)

	var run []suite.ConformanceTest
	for _, test := range tests.ConformanceTests {
		if !all.SupportedFeatures.HasAll(test.Features...) {
			continue
		}
		if why, is := notRun[test.ShortName]; is {
			t.Logf("not run: %s: %s", test.ShortName, why)
			continue
		}
		run = append(run, test)
	}
	for _, part := range parts {
		t.Logf("not run: %s...: it needs answers from pods", part)
	}
	pods(t, options.Client)
	all.Setup(t, run)
	require.NoError(t, all.Run(t, run))
}

// Creates a pod in each namespace and marks it as ready: the suite waits for a ready pod, and there is no
// kubelet that would run one.
func pods(t *testing.T, to client.Client) {
	namespaces := []string{suite.InfrastructureNamespace, suite.AppBackendNamespace, suite.WebBackendNamespace}
	for _, name := range namespaces {
		meta := metav1.ObjectMeta{Name: "ready", Namespace: name}
		no := false
		pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{{Name: "none", Image: "none.invalid/none"}},
		}}
		create(t, to, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		create(t, to, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}})
		create(t, to, pod)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		require.NoError(t, to.Status().Update(context.Background(), pod))
	}
}

func create(t *testing.T, to client.Client, object client.Object) {
	err := to.Create(context.Background(), object)
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}
