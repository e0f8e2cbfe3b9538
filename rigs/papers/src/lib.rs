//! Systems and sketches from papers by others, rebuilt for comparisons: weir itself does not use them.
//!
//! [`Oncache`] is the cache of a paper in eBPF, and [`XdpGenerate`] the traffic in front of which rivals are
//! measured. [`XdpRestore`] measures XDP programs that rewrite frames, among them those of [`XdpByHand`].
//!
//! Sketches, which share the keys, hashes and errors of [`weir_sketch`]:
//!
//! | module | answers | aggregated packets give |
//! |---|---|---|
//! | [`count_min`] | size of a flow, heavy hitters | the same state |
//! | [`count_sketch`] | size of a flow | the same state |
//! | [`flow_radar`] | all flows, exactly | the same state, but for flows that its filter mistakes |
//! | [`flajolet_martin`], [`linear_counting`] | number of flows | the same state |
//! | [`reversible`] | heavy changes, without candidates | the same state |
//! | [`space_saving`] | top flows | a state within the same bounds |
//! | [`two_level`] | super-spreaders | the same state |
//! | [`univmon`] | heavy hitters, changes, entropy, number of flows | the same counters |
//! | [`coco`] | size of any part of a key | a state with the same mean |
//! | [`elastic`] | size of a flow, heavy hitters | a state within the same bounds |
#![deny(unsafe_code)]

pub mod coco;
pub mod count_min;
pub mod count_sketch;
pub mod elastic;
pub mod flajolet_martin;
pub mod flow_radar;
pub mod linear_counting;
pub mod modular;
pub mod nine;
mod oncache;
pub mod reversible;
pub mod space_saving;
#[cfg(test)]
mod tests;
pub mod two_level;
pub mod univmon;
mod xdp_by_hand;
mod xdp_generate;
mod xdp_restore;

pub use coco::Coco;
pub use count_min::{CountMin, HeavyHitters};
pub use count_sketch::CountSketch;
pub use elastic::Elastic;
pub use flajolet_martin::FlajoletMartin;
pub use flow_radar::{Decoded, FlowRadar};
pub use linear_counting::LinearCounting;
pub use modular::{Modular, Reversed};
pub use nine::{Nine, NineBytes};
pub use oncache::Oncache;
pub use reversible::{AddressChange, Changes, Reversible};
pub use space_saving::SpaceSaving;
pub use two_level::{Spreader, Spreaders, TwoLevel};
pub use univmon::UnivMon;
pub use xdp_by_hand::{HandFlow, HandRoute, HandRule, HandTables, XdpByHand};
pub use xdp_generate::XdpGenerate;
pub use xdp_restore::{Buffers, FRAME, PinnedXdp, Ran, XdpArm, XdpRestore};
