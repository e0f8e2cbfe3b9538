//! What can be checked without a cluster, Helm or kustomize: the manifests have only fields that Kubernetes
//! knows, and weir-kube accepts the configurations in them. `make test-kube` compares the manifests with the
//! chart, and applies them to a real API server.

mod packaging;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use packaging::{base, objects, path};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_kube::config::Config;

/// Reads an object as its type, and writes it again: this loses fields that the type does not have.
fn round_trip<K: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: K = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{why}: {object}"));
    serde_json::to_value(typed).unwrap()
}

fn known(object: &Value) -> Value {
    match object["kind"].as_str().unwrap() {
        "ClusterRole" => round_trip::<ClusterRole>(object),
        "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(object),
        "ConfigMap" => round_trip::<ConfigMap>(object),
        "DaemonSet" => round_trip::<DaemonSet>(object),
        "Deployment" => round_trip::<Deployment>(object),
        "Namespace" => round_trip::<Namespace>(object),
        "PodDisruptionBudget" => round_trip::<PodDisruptionBudget>(object),
        "Role" => round_trip::<Role>(object),
        "RoleBinding" => round_trip::<RoleBinding>(object),
        "Secret" => round_trip::<Secret>(object),
        "ServiceAccount" => round_trip::<ServiceAccount>(object),
        other => panic!("no type for {other}"),
    }
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn manifests_have_only_fields_that_kubernetes_has() {
    let namespace = std::fs::read_to_string(path("kustomize/namespace/namespace.yaml")).unwrap();
    let all = [base("lb"), base("overlay"), base("path"), objects(&namespace)].concat();
    assert!(all.len() >= 15, "{}", all.len());
    for object in all {
        assert_eq!(known(&object), object);
    }
}

#[test]
fn the_controller_is_deployed_with_a_valid_configuration_and_no_privileges() {
    let all = base("lb");
    let deployment = of_kind(&all, "Deployment");
    let name = &deployment["metadata"]["name"];
    let named = all.iter().find(|one| one["kind"] == "ConfigMap" && &one["metadata"]["name"] == name);
    let config = Config::parse(named.unwrap()["data"]["weir-kube.yaml"].as_str().unwrap()).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["ports"][0]["containerPort"], config.listen.port());
    assert!(!config.listen.ip().is_loopback(), "the kubelet sends its probes to the pod's address");
    for (probe, path) in
        [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        let asks = &container[probe]["httpGet"];
        assert_eq!((&asks["path"], &asks["port"]), (&path.into(), &"metrics".into()), "{probe}");
    }
    assert_eq!(deployment["spec"]["replicas"], 2);
    let security = &container["securityContext"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"], serde_json::json!({ "drop": ["ALL"] }));

    // The account and the lease are those of the roles.
    let role = of_kind(&all, "Role");
    let lease = config.lease.unwrap();
    assert_eq!(role["metadata"]["namespace"], lease.namespace.as_str());
    assert_eq!(role["rules"][1]["resourceNames"][0], lease.name.as_str());
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        let subject = &of_kind(&all, kind)["subjects"][0];
        assert_eq!(subject["name"], pod["serviceAccountName"]);
        assert_eq!(subject["namespace"], deployment["metadata"]["namespace"]);
    }
}

/// A pod that starts again has its services before weir-kube reaches it: they are in a file of the node.
#[test]
fn nodes_keep_their_services_when_they_start_again() {
    let all = base("lb");
    let daemons = of_kind(&all, "DaemonSet");
    let name = &daemons["metadata"]["name"];
    let named = all.iter().find(|one| one["kind"] == "ConfigMap" && &one["metadata"]["name"] == name);
    let texts = ["chart/values.yaml", "chart/ci/example-values.yaml", "kustomize/example/weir.yaml"];
    let values = texts.map(|name| std::fs::read_to_string(path(name)).unwrap());
    let [defaults, example, of_kustomize]: [Value; 3] =
        values.map(|text| serde_saphyr::from_str(&text).unwrap());
    let rendered = serde_saphyr::from_str(named.unwrap()["data"]["weir.yaml"].as_str().unwrap()).unwrap();
    let [defaults, example] = [defaults, example].map(|values| values["lb"]["config"].clone());
    for config in [rendered, defaults, example, of_kustomize] {
        assert_eq!(config["apps"][0]["lb"]["persist"], true, "{config}");
        assert_eq!(config.get("state"), None, "the default is mounted");
    }
    let pod = &daemons["spec"]["template"]["spec"];
    let find = |all: &Value, name: &str| {
        all.as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap()
    };
    let mount = find(&pod["containers"][0]["volumeMounts"], "state");
    assert_eq!((&mount["mountPath"], mount.get("readOnly")), (&"/var/lib/weir".into(), None));
    let volume = find(&pod["volumes"], "state")["hostPath"].clone();
    // Not the folder of a weir that runs as a service there.
    let expected = serde_json::json!({ "path": "/var/lib/weir-lb", "type": "DirectoryOrCreate" });
    assert_eq!(volume, expected);
}

#[test]
fn the_example_of_kustomize_is_valid() {
    let text = std::fs::read_to_string(path("kustomize/example/weir-kube.yaml")).unwrap();
    let config = Config::parse(&text).unwrap();
    assert!(config.translates() && config.nodes.len() == 2);
}
