//! Resources that two ports cannot share: an interface, a device, a file that one of them writes. Here, the
//! mistake is reported with its line; later, it would make the daemon fail to start, or lose frames.

use crate::ports::{PortConfig, PortKind};
use crate::{Report, Span};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The resources that ports use, and which port used each first.
#[derive(Default)]
struct Used {
    devices: HashMap<String, String>,
    written: HashMap<PathBuf, String>,
}

/// Reports what several ports use. `spans` has the place of each port.
pub fn report(ports: &[PortConfig], spans: &[Span], report: &mut Report) {
    let mut used = Used::default();
    for (port, span) in ports.iter().zip(spans) {
        used.device(port, *span, report);
        for (key, path) in written(port) {
            used.file(port, (key, path), *span, report);
        }
    }
    for (port, span) in ports.iter().zip(spans) {
        let PortKind::Pcap { input: Some(input), .. } = &port.kind else { continue };
        if let Some(by) = used.written.get(&same(input)) {
            let message = format!(
                "port `{}` receives {}, which {by} writes: the recording would be lost",
                port.name,
                input.display()
            );
            report.error(*span, message);
        }
    }
}

impl Used {
    fn device(&mut self, port: &PortConfig, span: Span, report: &mut Report) {
        let device = match &port.kind {
            // One interface may have several names.
            PortKind::Xdp(_) => format!("interface `{}`", port.interface_name().unwrap_or_default()),
            PortKind::Dpdk { devargs, .. } => format!("device `{devargs}`"),
            PortKind::Pcap { .. } | PortKind::Mem | PortKind::Traffic(_) => return,
        };
        if let Some(first) = self.devices.get(&device) {
            let message = format!("{device} is already port `{first}`");
            report.error_help(span, message, "one interface is one port, with all the queues it needs");
        } else {
            self.devices.insert(device, port.name.clone());
        }
    }

    fn file(&mut self, port: &PortConfig, (key, path): (&str, &Path), span: Span, report: &mut Report) {
        let by = format!("`{key}` of port `{}`", port.name);
        if let Some(first) = self.written.get(&same(path)) {
            let message = format!("{by} writes {}, and so does {first}", path.display());
            report.error_help(span, message, "every recording needs its own file");
        } else {
            self.written.insert(same(path), by);
        }
    }
}

/// The files that a port writes, with the keys that name them.
fn written(port: &PortConfig) -> Vec<(&'static str, &Path)> {
    let mut files = vec![("trace", port.trace.as_deref())];
    if let PortKind::Pcap { output, kernel, .. } = &port.kind {
        files.extend([("out", output.as_deref()), ("kernel", kernel.as_deref())]);
    }
    let regular = |path: &&Path| !is_device(path);
    files.into_iter().filter_map(|(key, path)| Some((key, path.filter(regular)?))).collect()
}

/// Whether a path is a device such as `/dev/null`, which several ports may write to.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Returns the same path for the same file, however the path is written, even if the file does not exist yet.
fn same(path: &Path) -> PathBuf {
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let in_folder = || {
        let folder = absolute().parent()?.canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(absolute)
}
