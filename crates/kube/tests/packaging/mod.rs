//! The manifests in packaging/kubernetes.

#![allow(dead_code, reason = "each test uses only a part")]
use serde_json::Value;
use std::path::PathBuf;

/// Returns the path of a file in packaging/kubernetes.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes").join(name)
}

/// Reads the objects of a file, which begins with a comment or a separator.
pub fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("---\n").filter(|one| one.contains("kind:"));
    documents.map(|one| serde_saphyr::from_str(one).unwrap_or_else(|why| panic!("{why}: {one}"))).collect()
}

/// Reads the base manifests of kustomize for a part.
pub fn base(part: &str) -> Vec<Value> {
    objects(&std::fs::read_to_string(path("kustomize").join(part).join("weir.yaml")).unwrap())
}
