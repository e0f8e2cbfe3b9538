//! Frames sent by the tests.

use weir_packet::craft;

/// A UDP packet of a flow, which is identified by the source port.
pub fn udp(flow: u16) -> Vec<u8> {
    craft::frame(&format!("eth.src={} src=10.0.0.2 dst=10.0.0.1 sport={flow} dport=80", mac(1)))
}

/// A UDP packet of a flow with a sequence number.
pub fn numbered(flow: u16, number: u32) -> Vec<u8> {
    let ports = format!("sport={flow} dport=80");
    craft::frame(&format!("eth.src={} src=10.0.0.2 dst=10.0.0.1 {ports} payload={number:08x}", mac(1)))
}

/// A large UDP packet of a flow.
pub fn long(flow: u16) -> Vec<u8> {
    craft::frame(&format!("eth.src={} src=10.0.0.2 dst=10.0.0.1 sport={flow} dport=80 len=1500", mac(1)))
}

/// The flow and the sequence number of a frame made by `numbered`.
pub fn number_of(frame: &[u8]) -> (u16, u32) {
    let (flow, number) = (&frame[34..36], &frame[42..46]);
    (u16::from_be_bytes(flow.try_into().unwrap()), u32::from_be_bytes(number.try_into().unwrap()))
}

/// A TCP packet of this length to one of many ports, as OVS's tests send them.
pub fn tcp(dport: u16, length: usize) -> Vec<u8> {
    craft::frame(&format!(
        "eth.src={} src=10.0.0.2 dst=10.0.0.1 proto=tcp sport=8 dport={dport} len={length}",
        mac(1)
    ))
}

/// A packet from a station, optionally tagged.
pub fn from(station: u16, vid: Option<u16>, flow: u16) -> Vec<u8> {
    let tag = vid.map_or(String::new(), |vid| format!("vlan={vid}"));
    craft::frame(&format!("eth.src={} {tag} src=10.0.0.2 dst=10.0.0.1 sport={flow} dport=80", mac(station)))
}

/// A broadcast from a station: an ARP request for another address, or for its own (gratuitous).
pub fn arp(station: u16, gratuitous: bool) -> Vec<u8> {
    let target = if gratuitous { "10.0.9.1" } else { "10.0.9.2" };
    let ip = format!("sender_ip=10.0.9.1 target_ip={target}");
    craft::frame(&format!("eth.src={} eth.dst=ff:ff:ff:ff:ff:ff arp=request {ip}", mac(station)))
}

/// The address of a station, as in OVS's tests.
pub fn mac(station: u16) -> String {
    let [high, low] = station.to_be_bytes();
    format!("50:54:00:00:{high:02x}:{low:02x}")
}

/// The source address of a frame.
pub fn source(frame: &[u8]) -> [u8; 6] {
    frame[6..12].try_into().unwrap()
}

/// Whether it is a RARP frame, with which a bond announces where a station is.
pub fn is_rarp(frame: &[u8]) -> bool {
    frame[12..14] == [0x80, 0x35] || frame[12..14] == [0x81, 0] && frame[16..18] == [0x80, 0x35]
}
