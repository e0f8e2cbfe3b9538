//! `weir measure` on third-party recordings: those of the test suites in Debian's sources of tcpdump and
//! nDPI. Totals are compared with `capinfos`, conversations with tshark.
//!
//! The sources are fetched once, from this machine's package mirror, into `target/tmp`; none of them is kept
//! in the repository.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Source packages with recordings: 667 and 257 of them.
const PACKAGES: [&str; 2] = ["tcpdump", "ndpi"];

/// Files of tcpdump with packets whose recorded length exceeds their original length: weir trusts the
/// recorded one.
const GARBLED: [&str; 3] = ["aoe-oobr-1.pcap", "pim_header_asan-2.pcap", "rsvp-rsvp_obj_print-oobr.pcap"];

/// Files of nDPI with packets that Wireshark assigns to other conversations than weir, and why.
const OTHERWISE: [(&str, &[&str]); 4] = [
    (
        "to weir, an ICMP error belongs to the flow that it is about",
        &[
            "6in4tunnel.pcap",
            "KakaoTalk_chat.pcap",
            "alexa-app.pcapng",
            "anyconnect-vpn.pcap",
            "doq.pcapng",
            "instagram.pcap",
            "iphone.pcap",
            "nintendo.pcap",
            "quic_interop_V.pcapng",
            "signal.pcap",
            "skype.pcap",
            "skype_no_unknown.pcap",
            "stun_signal.pcapng",
            "teams.pcap",
            "wa_voice.pcap",
            "whatsapp_login_call.pcap",
            "zoom.pcap",
            "zoom2.pcap",
        ],
    ),
    (
        "to weir, no fragment has ports",
        &[
            "dns_fragmented.pcap",
            "dnscrypt-v1-and-resolver-pings.pcap",
            "ip_fragmented_garbage.pcap",
            "quic-fuzz-overflow.pcapng",
        ],
    ),
    (
        "Wireshark also reads what is inside GTP, CAPWAP and CFP",
        &[
            "ajp.pcap",
            "capwap.pcap",
            "ipv6_in_gtp.pcap",
            "ja3_lots_of_cipher_suites_2_anon.pcap",
            "reasm_segv_anon.pcapng",
            "tls_invalid_reads.pcap",
        ],
    ),
    (
        "Wireshark reads on where a length in a header is wrong",
        &[
            "anydesk-2.pcap",
            "badpackets.pcap",
            "fuzz-2006-06-26-2594.pcap",
            "fuzz-2006-09-29-28586.pcap",
            "fuzz-2020-02-16-11740.pcap",
            "ndpi_match_string_subprotocol__error.pcapng",
            "reasm_crash_anon.pcapng",
        ],
    ),
];

/// The recordings of a source package; `None`, and a line with the reason, if they are unavailable.
fn captures(package: &str) -> Option<Vec<PathBuf>> {
    static FETCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("captures");
    match FETCHED.get_or_init(|| fetch(&folder)) {
        Ok(()) => {
            let mut found = Vec::new();
            list(&folder.join(package), &mut found);
            found.sort();
            assert!(found.len() > 200, "{package} has {} recordings", found.len());
            Some(found)
        }
        Err(why) => {
            // A different mirror, or none, is no fault of the program.
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Extracts the recordings from the source packages, if that was not done before.
fn fetch(folder: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    for program in ["apt-get", "tar", "capinfos", "mergecap", "tshark"] {
        let known = Command::new(program).arg("--version").output();
        known.map_err(|_| format!("{program} is not installed"))?;
    }
    if folder.is_dir() {
        return Ok(());
    }
    // All or nothing: another run may be interrupted, or do the same concurrently.
    let partial = folder.with_extension(std::process::id().to_string());
    let _ = std::fs::remove_dir_all(&partial);
    for part in ["parts", "lists/partial", "cache/archives/partial", "sources"] {
        std::fs::create_dir_all(partial.join(part)).map_err(text)?;
    }
    sources(&partial.join("parts")).map_err(text)?;
    let updated = apt_get(&partial, &["update"]).map_err(text)?;
    let source = ["source", "--download-only", "--tar-only"];
    let fetched = apt_get(&partial, &[&source[..], &PACKAGES].concat()).map_err(text)?;
    if !fetched.status.success() {
        let said = |output: Output| String::from_utf8_lossy(&output.stderr).trim().to_string();
        let both = format!("{}; {}", said(updated), said(fetched));
        let _ = std::fs::remove_dir_all(&partial);
        return Err(format!("no source packages can be had from this machine's mirrors: {both}"));
    }
    for package in PACKAGES {
        unpack(&partial.join("sources"), package, &partial.join(package))?;
    }
    for part in ["parts", "lists", "cache", "sources"] {
        std::fs::remove_dir_all(partial.join(part)).map_err(text)?;
    }
    if std::fs::rename(&partial, folder).is_err() {
        // Another run was faster.
        let _ = std::fs::remove_dir_all(&partial);
    }
    Ok(())
}

/// Writes this machine's package sources as sources of source packages.
fn sources(parts: &Path) -> std::io::Result<()> {
    let listed = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    let files = listed.map(|entry| entry.map(|entry| entry.path()));
    for path in files.chain([Ok(PathBuf::from("/etc/apt/sources.list"))]) {
        let path = path?;
        let (Some(name), Ok(text)) = (path.file_name(), std::fs::read_to_string(&path)) else { continue };
        let line = |line: &str| match line.split_once([' ', ':']) {
            Some(("Types", _)) => "Types: deb-src\n".to_string(),
            Some(("deb", rest)) => format!("deb-src {rest}\n"),
            _ => format!("{line}\n"),
        };
        std::fs::write(parts.join(name), text.lines().map(line).collect::<String>())?;
    }
    Ok(())
}

/// Runs apt-get so that everything it writes is in a folder.
fn apt_get(folder: &Path, arguments: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new("apt-get");
    for (key, value) in [
        ("Dir::Etc::SourceList", "/dev/null".to_string()),
        ("Dir::Etc::SourceParts", folder.join("parts").display().to_string()),
        ("Dir::State::Lists", folder.join("lists").display().to_string()),
        ("Dir::Cache", folder.join("cache").display().to_string()),
        ("APT::Sandbox::User", "root".to_string()),
        ("Acquire::Retries", "3".to_string()),
        ("Acquire::http::Timeout", "20".to_string()),
    ] {
        command.args(["-o", &format!("{key}={value}")]);
    }
    command.arg("-q").args(arguments).current_dir(folder.join("sources")).stdin(Stdio::null()).output()
}

/// Unpacks the recordings of a package.
fn unpack(sources: &Path, package: &str, folder: &Path) -> Result<(), String> {
    let start = format!("{package}_");
    let entries = std::fs::read_dir(sources).map_err(|error| error.to_string())?.flatten();
    let is_it =
        |name: &str| name.starts_with(&start) && name.contains(".orig.tar.") && !name.ends_with(".asc");
    let archive = entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| is_it(&name.to_string_lossy())));
    let archive = archive.ok_or_else(|| format!("{package} has no archive"))?;
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("xf").arg(archive).arg("-C").arg(folder).args(["--wildcards", "*.pcap", "*.pcapng"]);
    // tar also fails if there is no file of the second kind.
    tar.output().map(|_| ()).map_err(|error| error.to_string())
}

fn list(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pcap" | "pcapng") if path.is_file() => found.push(path),
            _ => list(&path, found),
        }
    }
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("names are ASCII")
}

fn measure(files: &[PathBuf], arguments: &[&str]) -> Value {
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = weir.args(["measure", "--json"]).args(arguments).args(files).output().expect("weir runs");
    serde_json::from_slice(&output.stdout).expect("a JSON object")
}

/// Packets and bytes of each file that capinfos can read.
fn capinfos(files: &[PathBuf]) -> BTreeMap<String, [u64; 2]> {
    let output = Command::new("capinfos").arg("-TmrQcd").args(files).output().expect("it was there before");
    let row = |line: &str| {
        let words: Vec<&str> = line.split(',').map(|word| word.trim_matches('"')).collect();
        let [file, .., packets, bytes] = words[..] else { return None };
        Some((file.to_string(), [packets.parse().ok()?, bytes.parse().ok()?]))
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(row).collect()
}

#[test]
fn totals_are_those_of_capinfos() {
    for package in PACKAGES {
        let Some(mut files) = captures(package) else { return };
        files.retain(|file| !GARBLED.contains(&name(file)));
        let reported = capinfos(&files);
        let measured = measure(&files, &["--top", "0"]);
        let (mut bytes, mut read) = (0, 0);
        for file in measured["files"].as_array().expect("files") {
            let [name, error] = ["file", "error"].map(|key| file[key].as_str().unwrap_or_default());
            let packets = file["packets"].as_u64().expect("a number");
            match reported.get(name) {
                // A file that capinfos refuses, weir may read up to the same place.
                None => assert!(!error.is_empty(), "{name} is read"),
                Some(_) if packets == 0 && error.contains("link type") => (),
                Some(reported) => {
                    assert_eq!(packets, reported[0], "{name}: {error}");
                    bytes += reported[1];
                    read += 1;
                }
            }
        }
        assert!(read * 2 > files.len(), "{package}: {read} files were read");
        let refused = measured["files"]
            .as_array()
            .expect("files")
            .iter()
            .filter(|file| !reported.contains_key(file["file"].as_str().unwrap_or_default()));
        assert_eq!(refused.map(|file| file["packets"].as_u64().unwrap()).sum::<u64>(), 0);
        assert_eq!(measured["bytes"], bytes, "{package}");
    }
}

/// Packets of each conversation, by protocol and both ends in order.
type Conversations = BTreeMap<[String; 3], u64>;

fn add(conversations: &mut Conversations, protocol: &str, ends: [&str; 2], packets: u64) {
    let mut ends = ends.map(|end| end.replace(['[', ']'], ""));
    ends.sort_unstable();
    let [one, other] = ends;
    *conversations.entry([protocol.to_string(), one, other]).or_default() += packets;
}

/// Packets that weir ignores, because no host may send from their source address.
const IMPOSSIBLE: &str = "ip.src == 224.0.0.0/4 || ip.src == 255.255.255.255 || ipv6.src == ff00::/8 || \
    (ip.src == 0.0.0.0 && !(ip.dst == 224.0.0.0/4 || ip.dst == 255.255.255.255)) || \
    (ipv6.src == :: && !(ipv6.dst == ff00::/8))";

/// Returns the conversations of a recording according to tshark, with fragments unassembled.
fn of_tshark(file: &Path) -> Conversations {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-q", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    let counted = ["tcp", "udp"].map(|protocol| format!("conv,{protocol},!({IMPOSSIBLE})"));
    counted.iter().for_each(|each| _ = tshark.args(["-z", each]));
    let output = tshark.arg("-r").arg(file).output().expect("tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut found, mut protocol) = (Conversations::new(), "");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        protocol = match line.get(..4) {
            Some("TCP ") => "tcp",
            Some("UDP ") => "udp",
            _ => protocol,
        };
        let Some((one, rest)) = line.split_once(" <-> ") else { continue };
        // Packets and bytes (a number and a unit) in one direction, in the other, and in both.
        let words: Vec<&str> = rest.split_whitespace().collect();
        add(&mut found, protocol, [one.trim(), words[0]], words[7].parse().expect("packets"));
    }
    found
}

#[test]
fn conversations_are_those_of_tshark() {
    let Some(mut files) = captures("ndpi") else { return };
    let otherwise: BTreeSet<&str> = OTHERWISE.iter().flat_map(|(_, names)| *names).copied().collect();
    files.retain(|file| !otherwise.contains(name(file)));
    let measured = measure(&files, &["--top", "10000", "--across-tunnels"]);
    let errors = measured["files"].as_array().expect("files").iter().filter(|file| !file["error"].is_null());
    let errors: BTreeSet<&str> = errors.map(|file| file["file"].as_str().unwrap_or_default()).collect();
    files.retain(|file| !errors.contains(file.to_str().expect("ASCII")));
    assert!(errors.len() < 10 && files.len() > 200, "{} files, not {errors:?}", files.len());
    assert_eq!(measured["top_flows"]["missing"], 0, "every flow is in the list");
    let mut expected = Conversations::new();
    for row in measured["top"].as_array().expect("rows") {
        let key: Vec<&str> = row["key"].as_str().expect("text").split(' ').collect();
        if let [protocol @ ("tcp" | "udp"), one, _, other] = key[..] {
            add(&mut expected, protocol, [one, other], row["packets"].as_u64().expect("a number"));
        }
    }
    let merged = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("merged-{}", std::process::id()));
    let mut mergecap = Command::new("mergecap");
    mergecap.args(["-a", "-F", "pcapng", "-w"]).arg(&merged).args(&files);
    assert!(mergecap.status().expect("mergecap").success());
    let found = of_tshark(&merged);
    std::fs::remove_file(&merged).expect("it was written");
    assert!(found.len() > 5000, "{} conversations", found.len());
    assert_eq!(found, expected);
}
