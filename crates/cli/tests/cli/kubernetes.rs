//! The configurations in packaging/kubernetes, as kustomize uses them. `make test-kube` checks that the chart
//! renders to the same ones.

use crate::folder::Folder;
use crate::weir;
use serde_json::{Value, json};

const PARTS: [(&str, &str, &[&str]); 3] = [
    (
        "lb",
        include_str!("../../../../packaging/kubernetes/kustomize/lb/weir.yaml"),
        &["NET_ADMIN", "NET_RAW", "BPF", "PERFMON", "IPC_LOCK"],
    ),
    (
        "overlay",
        include_str!("../../../../packaging/kubernetes/kustomize/overlay/weir.yaml"),
        &["NET_ADMIN", "BPF", "PERFMON"],
    ),
    (
        "path",
        include_str!("../../../../packaging/kubernetes/kustomize/path/weir.yaml"),
        &["NET_ADMIN", "NET_RAW", "BPF", "PERFMON"],
    ),
];

/// Returns the objects of a manifest.
fn objects(manifest: &str) -> Vec<Value> {
    manifest.split("---\n").skip(1).map(|one| serde_saphyr::from_str(one).expect("YAML")).collect()
}

/// Each DaemonSet mounts a valid configuration, probes the address on which this configuration serves, and
/// grants only the privileges that weir needs.
#[test]
fn each_daemon_set_has_a_valid_configuration_and_the_least_privileges() {
    for (part, manifest, capabilities) in PARTS {
        let all = objects(manifest);
        let set = all.iter().find(|one| one["kind"] == "DaemonSet").expect("a DaemonSet");
        let name = &set["metadata"]["name"];
        let holds = |one: &&Value| one["kind"] != "DaemonSet" && &one["metadata"]["name"] == name;
        let holder = all.iter().find(holds).expect("an object with its name that holds the configuration");
        let text =
            holder.get("data").or_else(|| holder.get("stringData")).expect("data")["weir.yaml"].clone();
        let text = text.as_str().expect("a file");
        let folder = Folder::new();
        folder.write("weir.yaml", text);
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(said.code, Some(0), "{part}: {}", said.err);

        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["hostNetwork"], &pod["automountServiceAccountToken"]),
            (&json!(true), &json!(false))
        );
        let volume =
            json!([pod["volumes"][0]["configMap"]["name"], pod["volumes"][0]["secret"]["secretName"]]);
        assert!(volume.as_array().expect("two").contains(name), "{part}: {volume}");
        let container = &pod["containers"][0];
        let security = json!({
            "runAsUser": 0, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"], "add": capabilities },
        });
        assert_eq!(container["securityContext"], security, "{part}");
        let config: Value = serde_saphyr::from_str(text).expect("YAML");
        for (probe, path) in
            [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
        {
            let asks = &container[probe]["httpGet"];
            let address = format!("{}:{}", asks["host"].as_str().expect("a host"), asks["port"]);
            assert_eq!(
                (&config["metrics"], &asks["path"]),
                (&json!(address), &json!(path)),
                "{part} {probe}"
            );
        }
    }
}

#[test]
fn the_example_of_kustomize_is_valid_on_each_of_its_nodes() {
    let folder = Folder::new();
    folder.write("weir.yaml", include_str!("../../../../packaging/kubernetes/kustomize/example/weir.yaml"));
    for values in [
        include_str!("../../../../packaging/kubernetes/kustomize/example/worker1.yaml"),
        include_str!("../../../../packaging/kubernetes/kustomize/example/worker2.yaml"),
    ] {
        folder.write("values.yaml", values);
        let said = weir(folder.path(), &["check", "weir.yaml", "--node", "values.yaml"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
    }
}
