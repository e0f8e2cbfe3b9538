//! The program, a real API server of Kubernetes with its etcd, and three nodes, one of them with packets.
//! `make test-kube` starts the server with tests/kube/serve, and the path of `weir` is in WEIR. There are no
//! kubelets and no other controllers, so the test writes what they would write.

mod bed;
mod conformance;
mod manifests;
mod many;
mod network;
mod objects;
#[path = "../packaging/mod.rs"]
mod packaging;
mod packets;

use bed::Bed;
use packets::ServiceTraffic;
use serde_json::json;

#[test]
#[ignore = "needs an API server: make test-kube"]
fn objects_of_a_real_api_server_reach_nodes() {
    let bed = Bed::new();
    manifests::are_accepted(&bed);
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
    bed.create("/api/v1/namespaces", &namespace);
    let first = bed.controller("first.yaml");
    first.until_ready();
    objects::endpoints_come_and_go(&bed);
    objects::a_gateway_has_conditions(&bed);
    conformance::holds();

    let mut traffic = ServiceTraffic::begin(&bed);
    traffic.scale_to_zero_and_back();
    traffic.roll();
    traffic.delete_and_create();
    traffic.limit_clients();
    let leader = traffic.leaders(first);
    traffic.without_api_server(&leader);
    many::services(&bed, leader, &traffic);
}
