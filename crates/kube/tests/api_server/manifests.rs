//! The manifests in packaging/kubernetes, as tests/kube/manifests has rendered them.

use crate::bed::Bed;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The namespace of the manifests.
const NAMESPACE: &str = "weir-system";

/// Returns the path of an object of these manifests in the API.
fn place(object: &Value) -> String {
    let group = match object["apiVersion"].as_str().unwrap() {
        "v1" => "/api/v1".to_string(),
        other => format!("/apis/{other}"),
    };
    let kind = object["kind"].as_str().unwrap();
    let name = object["metadata"]["name"].as_str().unwrap();
    let is_global = ["ClusterRole", "ClusterRoleBinding", "Namespace"].contains(&kind);
    let within = if is_global { String::new() } else { format!("/namespaces/{NAMESPACE}") };
    format!("{group}{within}/{}s/{name}", kind.to_lowercase())
}

fn apply(bed: &Bed, object: &Value, more: &str) {
    let path = format!("{}?fieldManager=test&fieldValidation=Strict{more}", place(object));
    bed.ask("PATCH", &path, object).unwrap_or_else(|why| panic!("{path}: {why}"));
}

fn objects(name: &str) -> Vec<Value> {
    let folder = PathBuf::from(std::env::var("KUBE_RENDERED").unwrap());
    crate::packaging::objects(&std::fs::read_to_string(folder.join(name)).unwrap())
}

/// The API server accepts all manifests, and the controllers of this test use the account that the manifests
/// create.
pub fn are_accepted(bed: &Bed) {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    bed.create("/api/v1/namespaces", &namespace);
    let mut count = 0;
    let kustomize = ["namespace", "lb", "overlay", "path", "example"];
    let kustomize = kustomize.map(|name| format!("kustomize-{name}.yaml"));
    for name in kustomize.into_iter().chain(["example.yaml".to_string()]) {
        for object in objects(&name) {
            apply(bed, &object, "&dryRun=All");
            count += 1;
        }
    }
    println!("{count} objects of the chart and of kustomize are accepted");
    let rights = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    for object in objects("kustomize-lb.yaml") {
        if rights.contains(&object["kind"].as_str().unwrap()) {
            apply(bed, &object, "");
        }
    }
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/weir-kube/token");
    let version = "authentication.k8s.io/v1";
    let spec = json!({ "expirationSeconds": 86400, "audiences": [] });
    let wanted = json!({ "apiVersion": version, "kind": "TokenRequest", "spec": spec });
    let token = bed.ask("POST", &path, &wanted).unwrap()["status"]["token"].clone();
    bed.use_account(token.as_str().unwrap());
}
