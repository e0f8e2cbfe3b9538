//! Facts about an interface that only the ethtool ioctl provides.

use std::ffi::c_void;

use rustix::fd::OwnedFd;
use rustix::io;
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const SIOCETHTOOL: Opcode = 0x8946;
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
const SERVICE_VLAN: &[u8] = b"tx-vlan-stag-hw-insert";
const SERVICE_VLAN_STRIPPED: &[u8] = b"rx-vlan-stag-hw-parse";
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// `struct ifreq` with a pointer in its union, which is 24 bytes long.
#[repr(C)]
struct IfreqPointer {
    name: [u8; 16],
    data: *mut c_void,
    rest: [u64; 2],
}

/// A structure that begins with an ethtool command. The kernel writes at most the structure of that command.
///
/// # Safety
/// The type must be `repr(C)` and at least as long as the structure of the command with which it is used.
unsafe trait EthtoolReply {}

#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

/// `struct ethtool_channels`: the maxima, then the numbers in use.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`, which begins with the driver's name.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_cmd`.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    command: u32,
    modes: [u32; 2],
    speed: u16,
    ports: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    crossover: [u8; 2],
    rest: [u32; 3],
}

/// Room for a NIC's indirection table and key, in 32-bit words. Larger tables and keys are not requested.
const RSS_WORDS: usize = 2048;

/// `struct ethtool_rxfh`, followed by the table (a word for each bucket) and the key.
#[repr(C)]
struct Rss {
    command: u32,
    context: u32,
    table_words: u32,
    key_bytes: u32,
    function: [u8; 4],
    reserved: u32,
    words: [u32; RSS_WORDS],
}

// SAFETY: the kernel writes `table_words` words and `key_bytes` bytes after the header, and `rss` requests no
// more than fits.
unsafe impl EthtoolReply for Rss {}
// SAFETY: `struct ethtool_cmd` is 44 bytes long.
unsafe impl EthtoolReply for EthtoolCmd {}
// SAFETY: `struct ethtool_value`.
unsafe impl EthtoolReply for Value {}
// SAFETY: `struct ethtool_channels`.
unsafe impl EthtoolReply for Channels {}
// SAFETY: `struct ethtool_drvinfo` is 196 bytes long.
unsafe impl EthtoolReply for DriverInfo {}

const _: () =
    assert!(size_of::<IfreqPointer>() == 40 && size_of::<Channels>() == 36 && size_of::<DriverInfo>() == 196);
const _: () = assert!(size_of::<EthtoolCmd>() == 44 && size_of::<Rss>() == 24 + 4 * RSS_WORDS);

/// Names of features; the kernel has at most one for each bit of a 64-bit word.
const FEATURES_MAX: usize = 256;

/// `struct ethtool_gstrings` and its strings.
#[repr(C)]
struct EthtoolStrings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; 32]; FEATURES_MAX],
}

/// `struct ethtool_gfeatures`; a block holds the masks of available, requested, active and never-changed
/// features.
#[repr(C)]
struct Features {
    command: u32,
    count: u32,
    blocks: [[u32; 4]; FEATURES_MAX / 32],
}

// SAFETY: the kernel writes a name for each of its features, which are bits of a 64-bit word.
unsafe impl EthtoolReply for EthtoolStrings {}
// SAFETY: the kernel writes no more blocks than `count`.
unsafe impl EthtoolReply for Features {}

/// The parts of a sent frame that an interface leaves to offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offloads {
    /// L4 checksums.
    pub(super) checksum: bool,
    /// 802.1Q tags.
    pub(super) vlan: bool,
    /// 802.1ad tags.
    pub(super) service_vlan: bool,
}

/// Queries the interfaces of the namespace in which it was opened.
pub struct Ethtool(OwnedFd);

/// The queues of an interface that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuesInUse {
    /// The number of receive queues.
    pub rx: u32,
    /// The number of transmit queues.
    pub tx: u32,
    /// Whether receive and transmit queues come in pairs, which `ethtool -L` calls `combined`.
    pub paired: bool,
}

impl Ethtool {
    /// Opens a socket for queries.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open() -> io::Result<Ethtool> {
        socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map(Ethtool)
    }

    /// Returns the queues in use; `None` if the driver does not report them.
    #[must_use]
    pub fn queues(&self, interface: &str) -> Option<QueuesInUse> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        self.ask(interface, &mut channels)?;
        let Channels { rx, tx, combined, .. } = channels;
        Some(QueuesInUse { rx: rx + combined, tx: tx + combined, paired: combined > 0 })
    }

    pub(super) fn driver(&self, interface: &str) -> Option<String> {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        self.ask(interface, &mut info)?;
        Some(String::from_utf8_lossy(&info.driver).trim_end_matches('\0').to_owned())
    }

    /// Returns the parts of a sent frame that a NIC leaves to its hardware, or that a veth leaves incomplete.
    pub(super) fn offloads(&self, interface: &str) -> Offloads {
        Offloads {
            checksum: self.value(interface, ETHTOOL_GTXCSUM).is_some_and(|value| value != 0),
            vlan: self.value(interface, ETHTOOL_GFLAGS).is_some_and(|flags| flags & ETH_FLAG_TXVLAN != 0),
            service_vlan: self.feature(interface, SERVICE_VLAN).unwrap_or_default(),
        }
    }

    /// Returns whether a feature that has no command of its own is active; `None` if the kernel has no
    /// feature with that name.
    #[must_use]
    pub fn feature(&self, interface: &str, wanted: &[u8]) -> Option<bool> {
        let mut names = EthtoolStrings {
            command: ETHTOOL_GSTRINGS,
            set: ETH_SS_FEATURES,
            count: 0,
            names: [[0; 32]; FEATURES_MAX],
        };
        self.ask(interface, &mut names)?;
        let is_it = |name: &[u8; 32]| name.starts_with(wanted) && name.get(wanted.len()) == Some(&0);
        let at = names.names.iter().position(is_it)?;
        let blocks = FEATURES_MAX / 32;
        let mut features = Features {
            command: ETHTOOL_GFEATURES,
            count: blocks as u32,
            blocks: [[0; 4]; FEATURES_MAX / 32],
        };
        self.ask(interface, &mut features)?;
        const ACTIVE: usize = 2;
        Some(features.blocks[at / 32][ACTIVE] >> (at % 32) & 1 == 1)
    }

    /// Returns whether the NIC strips C-tags and S-tags from frames that it receives.
    pub(super) fn strips_tags(&self, interface: &str) -> [bool; 2] {
        let flags = self.value(interface, ETHTOOL_GFLAGS);
        let service = self.feature(interface, SERVICE_VLAN_STRIPPED).unwrap_or_default();
        [flags.is_some_and(|flags| flags & ETH_FLAG_RXVLAN != 0), service]
    }

    pub(super) fn large_receive_offload(&self, interface: &str) -> bool {
        self.value(interface, ETHTOOL_GFLAGS).is_some_and(|flags| flags & ETH_FLAG_LRO != 0)
    }

    /// Returns true if the interface has carrier. Fails if the interface is gone or its driver does not
    /// report carrier.
    pub(super) fn carrier(&self, interface: &str) -> io::Result<bool> {
        let mut value = Value { command: ETHTOOL_GLINK, value: 0 };
        self.try_ask(interface, &mut value)?;
        Ok(value.value != 0)
    }

    /// Returns the key and the table with which the NIC spreads frames over queues; `None` if it has none.
    pub(super) fn rss(&self, interface: &str) -> Option<(Vec<u8>, Vec<u32>)> {
        let mut rss = Rss {
            command: ETHTOOL_GRSSH,
            context: 0,
            table_words: 0,
            key_bytes: 0,
            function: [0; 4],
            reserved: 0,
            words: [0; RSS_WORDS],
        };
        // Without room for the table and the key, the kernel only reports their lengths.
        self.ask(interface, &mut rss)?;
        let (table, key) = (rss.table_words as usize, rss.key_bytes as usize);
        if table + key.div_ceil(4) > RSS_WORDS {
            return None;
        }
        self.ask(interface, &mut rss)?;
        if (rss.table_words as usize, rss.key_bytes as usize) != (table, key) {
            return None;
        }
        let (queues, rest) = rss.words.split_at(table);
        let key = rest.iter().flat_map(|word| word.to_ne_bytes()).take(key).collect();
        Some((key, queues.to_vec()))
    }

    /// Bits per second; `None` if the driver does not know.
    pub(super) fn speed_bps(&self, interface: &str) -> Option<u64> {
        let mut settings = EthtoolCmd { command: ETHTOOL_GSET, ..EthtoolCmd::default() };
        self.ask(interface, &mut settings)?;
        let megabits = u32::from(settings.speed_high) << 16 | u32::from(settings.speed);
        // `SPEED_UNKNOWN` is -1, in 16 bits or in 32.
        (!matches!(megabits, 0 | 0xffff | u32::MAX)).then(|| u64::from(megabits) * 1_000_000)
    }

    fn value(&self, interface: &str, command: u32) -> Option<u32> {
        let mut value = Value { command, value: 0 };
        self.ask(interface, &mut value)?;
        Some(value.value)
    }

    fn ask<T: EthtoolReply>(&self, interface: &str, answer: &mut T) -> Option<()> {
        self.try_ask(interface, answer).ok()
    }

    fn try_ask<T: EthtoolReply>(&self, interface: &str, answer: &mut T) -> io::Result<()> {
        let mut name = [0; 16];
        name[..15].get_mut(..interface.len()).ok_or(io::Errno::NODEV)?.copy_from_slice(interface.as_bytes());
        let mut request = IfreqPointer { name, data: std::ptr::from_mut(answer).cast(), rest: [0; 2] };
        // SAFETY: SIOCETHTOOL takes a `struct ifreq` whose pointer points to the command's structure
        // (`EthtoolReply`).
        unsafe { ioctl(&self.0, Updater::<SIOCETHTOOL, IfreqPointer>::new(&mut request)) }
    }
}
