//! Gateway classes: which of them this controller accepts, and which gateways it implements.

use crate::conditions::ConditionSet;
use crate::config::Config;
use crate::desired::{Desired, StatusChange};
use crate::gateway::{VERSION, change, json_of};
use crate::objects::{Cluster, reference};
use gateway_api::gatewayclasses::GatewayClass;
use gateway_api::gateways::Gateway;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What this controller supports, in the words of the conformance suite and in its order. Tests of the
/// features `Gateway` and `GatewayStaticAddresses` need HTTP, so these are not claimed.
const FEATURES: [&str; 3] = ["ReferenceGrant", "TCPRoute", "UDPRoute"];

/// The finalizer that the specification wants classes to have while they are in use, so that a class whose
/// gateways serve packets cannot be deleted.
const FINALIZER: &str = "gateway-exists-finalizer.gateway.networking.k8s.io";

/// The classes of this controller, by name, and whether each is accepted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Classes(BTreeMap<String, bool>);

impl Classes {
    /// Whether this controller implements a gateway. It continues to implement a gateway whose class is no
    /// longer accepted, because a class is a template: changes to it should not end what already serves.
    pub(crate) fn have(&self, gateway: &Gateway) -> bool {
        let is_accepted = self.0.get(&gateway.spec.gateway_class_name);
        is_accepted.is_some_and(|is_accepted| *is_accepted || is_known(gateway))
    }
}

/// Whether a gateway has been seen by its controller. Until then, its status is the API server's default. The
/// status is the only memory that outlives a controller.
fn is_known(gateway: &Gateway) -> bool {
    let mut conditions = gateway.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == "Accepted" && one.status != "Unknown")
}

/// Returns this controller's classes, and sets their statuses and finalizers.
pub(crate) fn classes(config: &Config, cluster: &Cluster, desired: &mut Desired) -> Classes {
    let mut classes = Classes::default();
    for class in cluster.classes.values().filter(|one| one.spec.controller_name == config.controller) {
        let name = class.metadata.name.clone().unwrap_or_default();
        let before = class.status.as_ref().and_then(|status| status.conditions.as_deref());
        let mut conditions = ConditionSet::new(before.unwrap_or_default(), &class.metadata, cluster.now);
        let is_accepted = class.spec.parameters_ref.is_none();
        if is_accepted {
            conditions.set("Accepted", true, "Accepted", "weir-kube implements this class");
        } else {
            let why = "`parametersRef` is not supported; earlier gateways are still served";
            conditions.set("Accepted", false, "InvalidParameters", why);
        }
        let is_used = cluster.gateways.values().any(|one| one.spec.gateway_class_name == name);
        classes.0.insert(name, is_accepted);
        let features = FEATURES.map(|name| json!({ "name": name }));
        let status = json!({ "conditions": conditions.all, "supportedFeatures": features });
        let is_changed = change(desired, "GatewayClass", &class.metadata, &json_of(&class.status), status);
        // One write at a time: the first one changes the version that both would refer to.
        if !is_changed {
            desired.statuses.extend(finalizers(class, is_used));
        }
    }
    classes
}

/// Adds the finalizer to a class that is used, or removes it from one that is not.
fn finalizers(class: &GatewayClass, is_used: bool) -> Option<StatusChange> {
    let meta = &class.metadata;
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let has = finalizers.iter().any(|one| one == FINALIZER);
    match (has, is_used) {
        // The API server accepts no new finalizer while an object is being deleted.
        (false, true) if meta.deletion_timestamp.is_none() => finalizers.push(FINALIZER.into()),
        (true, false) => finalizers.retain(|one| one != FINALIZER),
        (false, _) | (true, true) => return None,
    }
    Some(StatusChange {
        object: reference(VERSION, "GatewayClass", meta),
        version: meta.resource_version.clone(),
        status: Value::Null,
        finalizers: Some(finalizers),
        addresses: Vec::new(),
    })
}
