//! What a load balancer answers about services, over HTTP and over the control socket.

use crate::answers;

answers! {
    /// The status of a service, which requests may contain and which is then ignored.
    ServiceStatus {
        /// Its owner: `file`, `api` for services that clients have added, or another source.
        owner: String,
        /// The place of its definition in the file: file and line.
        #[serde(skip_serializing_if = "Option::is_none")]
        place: Option<String>,
        /// Identifies its specification: the `ETag` of the service.
        etag: String,
        /// The back ends.
        back_ends: Vec<BackEndState>,
    }

    /// The status of all services.
    SetStatus {
        /// Identifies the specifications of all services: the `ETag` of the set.
        etag: String,
    }

    /// All services.
    Services {
        /// The services.
        services: Vec<ServiceState>,
    }

    /// A service.
    ServiceState {
        /// Its name.
        name: String,
        /// The back ends.
        back_ends: Vec<BackEndState>,
    }

    /// The back ends of a service.
    BackEnds {
        /// The back ends.
        back_ends: Vec<BackEndState>,
    }

    /// A back end.
    BackEndState {
        /// Its name.
        name: String,
        /// Its weight if nothing is wrong; 0 gets no new flows.
        weight: u32,
        /// Its status, in one word.
        health: String,
        /// The reason for its status; empty if there is nothing to say.
        reason: String,
    }

    /// What was done.
    Done {
        /// The number of requests that were carried out.
        done: usize,
        /// Names a service that gets no new flows, because no back end has a weight.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
        /// With `dry_run`: what would change.
        #[serde(skip_serializing_if = "Option::is_none")]
        changes: Option<Changes>,
    }

    /// What a request has changed.
    Changes {
        /// Services that are new, by name.
        created: Vec<String>,
        /// Services that have changed, by name.
        updated: Vec<String>,
        /// Services that are gone, by name.
        removed: Vec<String>,
        /// The number of services that stay as they are.
        unchanged: usize,
        /// Back ends that were added to services which stay.
        back_ends_added: usize,
        /// Back ends that were removed from services which stay.
        back_ends_removed: usize,
        /// Back ends of which only the weight has changed.
        back_ends_reweighted: usize,
        /// Back ends of which other values have changed.
        back_ends_changed: usize,
        /// The `ETag` of the service or the set after the request.
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<String>,
        /// After PUT: the `ETag` of the set before the request, by which a client notices that others have
        /// changed it.
        #[serde(skip_serializing_if = "Option::is_none")]
        set_before: Option<String>,
        /// After PUT: the `ETag` of the set after the request.
        #[serde(skip_serializing_if = "Option::is_none")]
        set_after: Option<String>,
        /// With `dry_run`: for each service that changes, the share of its flows that moves to other back
        /// ends.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<Moved>,
    }

    /// The effect on the flows of a group, as `weir plan` computes it.
    Moved {
        /// The name of the group: that of the service after `lb/`.
        name: String,
        /// The share of its flows without an entry that move.
        moved: f64,
        /// The minimum share that has to move for the targets to get their shares.
        least: f64,
        /// The changes that move flows.
        why: Vec<String>,
        /// Whether flows that are kept start over.
        flows_end: bool,
    }
}
