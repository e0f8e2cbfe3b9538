//! Why a frame was dropped. The list is closed, so that the reasons of all dropped frames are known and their
//! counts add up.

macro_rules! drop_reasons {
    ($($name:ident = $text:literal, $why:literal;)*) => {
        /// Why a frame was dropped. Metrics, JSON and `explain` use the name that `as_str` returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $why] $name,)* }

        impl DropReason {
            /// All reasons, ordered by number.
            pub const ALL: &[DropReason] = &[$(DropReason::$name,)*];

            /// Returns the name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }

            /// Returns one sentence for a person.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(DropReason::$name => $why,)* }
            }
        }
    };
}

drop_reasons! {
    Policy = "policy", "The program says `drop`.";
    Miss = "miss", "No entry of a pipe matched and the pipe's `miss` is `drop`.";
    MalformedEthernet = "malformed_ethernet", "The frame ends inside its Ethernet header or VLAN tags.";
    MalformedArp = "malformed_arp", "The frame ends inside its ARP packet.";
    MalformedIpv4 = "malformed_ipv4", "The IPv4 header is truncated or inconsistent (version, IHL, total \
        length), or its source address is not valid for a sender.";
    Ipv4LengthZero = "ipv4_length_zero", "The IPv4 total length is 0: the sender leaves segmentation to an \
        interface. Run `ethtool -K DEV tso off gso off gro off lro off` where the frame was sent or \
        recorded (veth: at the peer).";
    MalformedIpv6 = "malformed_ipv6", "The IPv6 header or an extension header is truncated or inconsistent, \
        or its source address is not valid for a sender.";
    MalformedTcp = "malformed_tcp", "The TCP header is truncated or its data offset is invalid.";
    MalformedUdp = "malformed_udp", "The UDP header is truncated or its length is invalid.";
    MalformedIcmp = "malformed_icmp", "The ICMP or ICMPv6 header is truncated.";
    MalformedVxlan = "malformed_vxlan", "The VXLAN header is truncated or its I flag is not set.";
    MalformedGeneve = "malformed_geneve", "The Geneve header is truncated.";
    MalformedGre = "malformed_gre", "The GRE header is truncated.";
    MalformedGue = "malformed_gue", "The GUE header is truncated.";
    MalformedInner = "malformed_inner", "A header inside a tunnel is truncated or inconsistent.";
    FirstFragmentMissing = "first_fragment_missing", "A fragment whose datagram's first fragment, which has \
        the ports, arrived neither before it nor soon after it.";
    FragmentsFull = "fragments_full", "A fragment that waited for the first fragment of its datagram was \
        evicted by too many later ones.";
    TooManyExtensionHeaders = "too_many_extension_headers", "More IPv6 extension headers than weir follows \
        (8).";
    TtlExpired = "ttl_expired", "`decrement_ttl` met a TTL or hop limit of 0 or 1.";
    NoHeadroom = "no_headroom", "No room in front of the frame to push the header.";
    NotApplicable = "not_applicable", "An action needs a header that the frame does not have (for example, \
        setting a TCP port of a UDP packet, or popping a missing tag).";
    EcnCeNotEct = "ecn_ce_not_ect", "The outer header of a tunnel signals congestion (CE) but the inner \
        packet does not support ECN (RFC 6040 §4.2).";
    GeneveCriticalOption = "geneve_critical_option", "`decap_geneve` met an option that is critical and \
        unknown (RFC 8926 §3.5).";
    NoTarget = "no_target", "The group has no live target.";
    NoNatPort = "no_nat_port", "The flow could not get an address and port from the NAT pool: the pool is \
        exhausted, or the flow table is full.";
    AnswersTaken = "answers_taken", "Another connection from the same client address and port is translated \
        to the same back end address and port, so their answers would be indistinguishable. Use `full_nat`, \
        or \
        another address or port of the back end for each service.";
    Metered = "metered", "The meter coloured it red and the monitor says `red: drop`.";
    AppFull = "app_full", "The app's ring of punted frames is full.";
    TransmitFull = "transmit_full", "The port's transmit queue is full.";
    NotWritten = "not_written", "The file that records the port's frames could not be written.";
    InterfaceGone = "interface_gone", "The port's interface does not currently exist.";
    PortRemoved = "port_removed", "A reload removed the port that held the frame or was to send it.";
    NoKernelPath = "no_kernel_path", "`forward: kernel` on a port that cannot give a frame back.";
    PoolEmpty = "pool_empty", "No free frame to copy into.";
    Oversize = "oversize", "The frame is longer than a receive buffer (1920 bytes, or what `mtu` sets), \
        than the MTU of the port it leaves through, or than 2048 bytes on its way to an app or worker. If \
        it is longer than any MTU, the sender leaves segmentation to an interface: run `ethtool -K DEV tso \
        off gso off gro off lro off` there (veth: at the peer).";
    TooLong = "too_long", "The packet is longer than `limit_length` allows; the app that the pipe's \
        `too_long` names gets such packets.";
    NotFragmented = "not_fragmented", "The IPv4 packet is longer than `limit_length` allows and does not \
        have DF set: its sender is not notified, and weir does not fragment.";
    HandOverFull = "hand_over_full", "The ring to the worker that owns the flow is full.";
    Stopped = "stopped", "The daemon stopped while it held the frame.";
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
