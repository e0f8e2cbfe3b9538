//! Rivals that find heavy flows in the same traffic: the three variants of the crate `heavykeeper`, and
//! DPDK's `rte_member` if weir is built with DPDK.

use super::round::CountingMethod;
use heavykeeper::{BucketedTopK, CuckooTopK, TopK};
use weir_sketch::Update;

/// A key: two words that hold a 5-tuple of IPv4.
pub type Key = [u64; 2];

/// Rows and decay, as in the crate's own example.
const DEPTH: usize = 4;
const DECAY: f64 = 0.9;

/// A rival sketch.
pub trait Keeper {
    /// Counts a packet.
    fn add(&mut self, key: &Key);

    /// Returns the keys that it remembers, with their sizes.
    fn list(&self) -> Vec<(Key, f64)>;
}

macro_rules! keeper {
    ($kind:ident) => {
        impl Keeper for $kind<Key> {
            fn add(&mut self, key: &Key) {
                $kind::add(self, key, 1);
            }

            fn list(&self) -> Vec<(Key, f64)> {
                $kind::list(self).into_iter().map(|node| (node.item, node.count as f64)).collect()
            }
        }
    };
}

keeper!(TopK);
keeper!(BucketedTopK);
keeper!(CuckooTopK);

/// The variants of `heavykeeper`, by type name.
const KEEPERS: [&str; 3] = ["heavykeeper TopK", "heavykeeper BucketedTopK", "heavykeeper CuckooTopK"];

/// The name of DPDK's sketch.
#[cfg(feature = "dpdk")]
const MEMBER: &str = "rte_member";

#[cfg(feature = "dpdk")]
impl Keeper for weir_port::dpdk::MemberSketch {
    fn add(&mut self, key: &Key) {
        weir_port::dpdk::MemberSketch::add(self, key);
    }

    fn list(&self) -> Vec<(Key, f64)> {
        weir_port::dpdk::MemberSketch::list(self)
            .into_iter()
            .map(|(key, packets)| (key, packets as f64))
            .collect()
    }
}

/// Returns DPDK, which is started on first use, or the reason why it does not start.
#[cfg(feature = "dpdk")]
fn eal() -> Result<weir_port::dpdk::Eal, &'static str> {
    use weir_port::dpdk::{Eal, EalOptions};
    static EAL: std::sync::OnceLock<Result<Eal, String>> = std::sync::OnceLock::new();
    let start = || Eal::init(&EalOptions::default()).map_err(|error| error.to_string());
    EAL.get_or_init(start).as_ref().copied().map_err(String::as_str)
}

/// Returns the names of the available rivals.
pub fn rivals() -> Vec<&'static str> {
    let all = KEEPERS.to_vec();
    #[cfg(feature = "dpdk")]
    let all = all.into_iter().chain(eal().ok().map(|_| MEMBER)).collect();
    all
}

/// Returns a sentence about the missing rival, if any.
pub fn left_out() -> Option<String> {
    #[cfg(feature = "dpdk")]
    return eal().err().map(|why| format!("{MEMBER} is omitted: {why}"));
    #[cfg(not(feature = "dpdk"))]
    Some("rte_member is omitted: this weir is built without DPDK (feature `dpdk`)".into())
}

/// Creates one of [`rivals`], empty, for `keys` keys in `bytes` bytes by its own accounting.
///
/// # Panics
/// Panics if DPDK has no memory for its sketch.
pub fn keeper(name: &str, keys: usize, bytes: usize) -> Box<dyn Keeper> {
    match name {
        #[cfg(feature = "dpdk")]
        MEMBER => {
            let member = eal().ok().map(|eal| weir_port::dpdk::MemberSketch::new(eal, keys, bytes));
            Box::new(member.expect("DPDK has started").expect("a sketch"))
        }
        "heavykeeper TopK" => {
            let size = |width| TopK::<Key>::new(keys, width, DEPTH, DECAY).mem_bytes(|_| 0);
            Box::new(TopK::<Key>::new(keys, width_for(bytes, size), DEPTH, DECAY))
        }
        "heavykeeper BucketedTopK" => {
            let size = |width| BucketedTopK::<Key>::new(keys, width, DEPTH, DECAY).mem_bytes(|_| 0);
            Box::new(BucketedTopK::<Key>::new(keys, width_for(bytes, size), DEPTH, DECAY))
        }
        _ => {
            let size = |width| CuckooTopK::<Key>::new(keys, width, DEPTH, DECAY).mem_bytes(|_| 0);
            Box::new(CuckooTopK::<Key>::new(keys, width_for(bytes, size), DEPTH, DECAY))
        }
    }
}

/// Returns the width at which a sketch has this many bytes, which grow linearly from a constant.
fn width_for(bytes: usize, size: impl Fn(usize) -> usize) -> usize {
    let (one, two) = (size(1024), size(2048));
    let each = (two - one).max(1);
    let constant = one.saturating_sub(each);
    (bytes.saturating_sub(constant) * 1024 / each).max(1)
}

/// A rival as an arm that counts every packet.
pub struct KeeperArm(pub Box<dyn Keeper>);

impl CountingMethod<2> for KeeperArm {
    fn burst(&mut self, packets: &[Update<2>]) {
        packets.iter().for_each(|packet| self.0.add(&packet.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_bytes_it_is_given_and_finds_a_heavy_key() {
        for name in rivals() {
            let mut keeper = keeper(name, 16, 100_000);
            for number in 0..5000 {
                keeper.add(&[number % 1000, 1]);
                keeper.add(&[7, 7]);
            }
            let heaviest = keeper.list().into_iter().max_by(|one, other| one.1.total_cmp(&other.1));
            assert_eq!(heaviest.map(|(key, _)| key), Some([7, 7]), "{name}");
        }
        let size = |width| TopK::<Key>::new(16, width, DEPTH, DECAY).mem_bytes(|_| 0);
        let bytes = size(width_for(100_000, size));
        assert!((99_000..=100_000).contains(&bytes), "{bytes}");
    }
}
