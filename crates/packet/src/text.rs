//! Bytes and MAC addresses as text.

/// Writes bytes as pairs of hexadecimal digits, with `between` between them.
#[must_use]
pub fn write_hex(bytes: &[u8], between: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between)
}

/// Reads an even number of hexadecimal digits.
#[must_use]
pub fn read_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Reads a MAC address: six pairs of hexadecimal digits with colons between them.
#[must_use]
pub fn read_mac(text: &str) -> Option<[u8; 6]> {
    let byte = |pair: &str| read_hex(pair).and_then(|byte| byte.try_into().ok()).map(|[byte]: [u8; 1]| byte);
    text.split(':').map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_read_as_it_was_written() {
        let mac = [0x02, 0, 0xab, 0xcd, 0xef, 0x01];
        assert_eq!(write_hex(&mac, ":"), "02:00:ab:cd:ef:01");
        assert_eq!((read_mac("02:00:ab:cd:ef:01"), read_mac("02:00:AB:CD:EF:01")), (Some(mac), Some(mac)));
        for wrong in ["", "2:0:ab:cd:ef:1", "02:00:ab:cd:ef", "02:00:ab:cd:ef:01:02", "02-00-ab-cd-ef-01"] {
            assert_eq!(read_mac(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hex_digits_come_in_pairs() {
        assert_eq!(read_hex(&write_hex(&[0, 0x7f, 0xff], "")), Some(vec![0, 0x7f, 0xff]));
        assert_eq!((read_hex(""), read_hex("abc"), read_hex("+1")), (Some(vec![]), None, None));
    }
}
