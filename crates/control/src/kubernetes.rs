//! Interprets Kubernetes objects, for all code that reads them: `weir-kube`, and the source of the lb app
//! that follows a file.

/// The label with the name of an EndpointSlice's service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_S: u64 = 10_800;
/// The longest time for which weir remembers clients, in seconds.
const AFFINITY_MAX_S: u64 = 864_000;

/// Returns how many seconds clients keep their back end with `sessionAffinity: ClientIP` and this
/// `timeoutSeconds`.
#[must_use]
pub fn affinity_s(timeout: Option<u64>) -> u64 {
    timeout.filter(|seconds| *seconds > 0).unwrap_or(AFFINITY_S).min(AFFINITY_MAX_S)
}

/// The state of an endpoint, ordered from worst to best. An endpoint that is temporarily in two slices has
/// the better of its two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// The endpoint gets no new flows.
    Out,
    /// The endpoint is terminating, but still serves.
    Terminating,
    /// The endpoint is ready.
    Ready,
}

impl EndpointState {
    /// Reads the conditions `ready`, `serving` and `terminating`. By default, an endpoint is ready, serves if
    /// it is ready, and is not terminating.
    #[must_use]
    pub fn of(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> EndpointState {
        let is_ready = ready.unwrap_or(true);
        match (is_ready, serving.unwrap_or(is_ready), terminating.unwrap_or(false)) {
            (true, ..) => EndpointState::Ready,
            (false, true, true) => EndpointState::Terminating,
            (false, ..) => EndpointState::Out,
        }
    }

    /// Given the states of all endpoints, returns the state that an endpoint must have to get new flows. If
    /// none is ready, terminating endpoints that still serve get new flows, as with kube-proxy, so that no
    /// connection fails when the last endpoint is replaced. `None`: no endpoint gets new flows.
    pub fn chosen(all: impl IntoIterator<Item = EndpointState>) -> Option<EndpointState> {
        all.into_iter().max().filter(|state| *state > EndpointState::Out)
    }
}
