//! How a NIC spreads frames over its queues (receive side scaling), as far as the kernel knows.
//!
//! With several workers, a frame whose flow belongs to another worker is handed over, which costs a copy. If
//! the NIC hashes with [`RSS_KEY`] and assigns the buckets to its queues in turn, weir spreads flows in the
//! same way, and hardly any frame is handed over.

use super::ethtool::Ethtool;
use weir_packet::{RSS_KEY, RSS_KEY_BYTES, write_hex};

/// How the frames of an interface are spread over its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// There is one queue.
    One,
    /// Frames are spread as weir's workers share flows, over this number of buckets.
    AsWorkers(u32),
    /// Frames are spread with another key or another table.
    Otherwise,
    /// The kernel does not know.
    Unknown,
}

impl Spread {
    /// Returns the machine-readable name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Spread::One => "one_queue",
            Spread::AsWorkers(_) => "as_workers",
            Spread::Otherwise => "otherwise",
            Spread::Unknown => "unknown",
        }
    }

    /// Returns the number of buckets if flows are spread as weir's workers share them, otherwise 0.
    #[must_use]
    pub fn buckets(self) -> u32 {
        if let Spread::AsWorkers(buckets) = self { buckets } else { 0 }
    }

    /// Returns an explanation and a remedy for the operator; `None` if no remedy is needed.
    #[must_use]
    pub fn sentence(self, interface: &str, queues: u32) -> Option<String> {
        match self {
            Spread::One => None,
            Spread::AsWorkers(_) => Some("RSS gives each worker its own flows".to_string()),
            Spread::Unknown => Some(
                "weir cannot tell how frames are spread over the queues: with several workers, it hands \
                 flows over"
                    .to_string(),
            ),
            Spread::Otherwise => Some(format!(
                "RSS gives workers flows that belong to others and must be handed over: `ethtool -X \
                 {interface} hkey {} equal {queues}` avoids that",
                key_text()
            )),
        }
    }
}

fn key_text() -> String {
    write_hex(&RSS_KEY, ":")
}

/// Returns how the frames of an interface are spread over its `queues` queues.
#[must_use]
pub fn spread(interface: &str, queues: u32) -> Spread {
    match Ethtool::open() {
        Ok(ethtool) => judge(queues, ethtool.rss(interface)),
        Err(_) => Spread::Unknown,
    }
}

/// Judges a NIC's key and table.
pub(super) fn judge(queues: u32, rss: Option<(Vec<u8>, Vec<u32>)>) -> Spread {
    if queues <= 1 {
        return Spread::One;
    }
    let Some((key, table)) = rss.filter(|(key, table)| !key.is_empty() && !table.is_empty()) else {
        return Spread::Unknown;
    };
    // Longer keys repeat the same pattern; the end of a shorter one is not used.
    let same_key = key.len() >= RSS_KEY_BYTES && key.chunks(2).all(|word| word == &RSS_KEY[..word.len()]);
    let in_turn = (0..).zip(&table).all(|(at, queue): (u32, &u32)| at % queues == *queue);
    if same_key && in_turn { Spread::AsWorkers(table.len() as u32) } else { Spread::Otherwise }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_spreads_as_the_workers_do_with_the_key_and_the_queues_in_turn() {
        let table = |queues: u32| (0..128).map(|at| at % queues).collect::<Vec<u32>>();
        let key = RSS_KEY.to_vec();
        assert_eq!(judge(2, Some((key.clone(), table(2)))), Spread::AsWorkers(128));
        assert_eq!(judge(3, Some((RSS_KEY.repeat(2)[..52].to_vec(), table(3)))), Spread::AsWorkers(128));
        let mut other = key.clone();
        other[39] ^= 1;
        for (key, table) in [(other, table(2)), (key.clone(), table(3)), (key[..38].to_vec(), table(2))] {
            assert_eq!(judge(2, Some((key, table))), Spread::Otherwise);
        }
        assert_eq!(judge(2, Some((Vec::new(), table(2)))), Spread::Unknown);
        assert_eq!((judge(2, None), judge(1, None)), (Spread::Unknown, Spread::One));
        let advice = Spread::Otherwise.sentence("eth0", 2).unwrap();
        assert!(
            advice.contains("`ethtool -X eth0 hkey 6d:5a:6d:5a:") && advice.contains("equal 2`"),
            "{advice}"
        );
    }

    #[test]
    fn of_an_interface_without_rss_nothing_is_known() {
        assert_eq!((spread("lo", 2), spread("there-is-no-such", 2)), (Spread::Unknown, Spread::Unknown));
    }
}
