//! Configurations of other load balancers. XenoFlow's `backends.json` becomes ports, a group and a pipe.
//! Configurations of IPVS, Katran and the GLB director become services; settings without a counterpart are
//! reported.

mod glb;
mod ipvs;
mod katran;
mod services;
mod xenoflow;

use services::Imported;
use std::net::IpAddr;
use std::path::Path;
use weir_app::foreign::{Foreign, Setting, SettingValues};
use weir_config::Report;

/// All systems that can be imported.
pub const FOREIGN: &[Foreign] = &[
    xenoflow::XENOFLOW,
    Foreign {
        name: "ipvs",
        about: "IPVS, and keepalived, which configures it: the output of `ipvsadm -S -n`",
        convert: |file, text, settings| converted(ipvs::read, "IPVS's", (file, text), settings),
        ..SERVICES
    },
    Foreign {
        name: "katran",
        about: "Katran: commands of its example client, `-A -t VIP:PORT` and `-a -t VIP:PORT -r REAL -w \
                WEIGHT`",
        convert: |file, text, settings| converted(katran::read, "Katran's", (file, text), settings),
        ..SERVICES
    },
    Foreign {
        name: "glb",
        about: "The GLB director: its forwarding tables, in JSON",
        convert: |file, text, settings| converted(glb::read, "The GLB director's", (file, text), settings),
        ..SERVICES
    },
];

/// The common part of all systems with services.
const SERVICES: Foreign = Foreign {
    name: "",
    about: "",
    file: "The file",
    settings: &[
        Setting {
            name: "in",
            value: "INTERFACE",
            help: "The interface on which packets arrive",
            default: Some("eth0"),
            several: false,
            check: |_| Ok(()),
        },
        Setting {
            name: "source",
            value: "ADDRESS",
            help: "The source address of tunnels to back ends; at most one of each IP version",
            default: None,
            several: true,
            check: |text| text.parse::<IpAddr>().map(drop).map_err(|error| error.to_string()),
        },
    ],
    recognise: None,
    is_partial: true,
    convert: |_, text, _| Err(Report::new("", text)),
};

/// Values that the other system's file does not contain.
#[derive(Clone, Debug, Default)]
struct Ports {
    /// The interface on which packets arrive.
    interface: String,
    /// Source addresses of tunnels, at most one of each IP version.
    sources: Vec<IpAddr>,
}

/// Converts services to YAML; also returns warnings about settings without a counterpart, which are also in
/// the YAML as comments.
fn converted(
    read: fn(&str, &str) -> Imported,
    whose: &str,
    (file, text): (&Path, &str),
    settings: &SettingValues,
) -> Result<(String, Report), Report> {
    let of = format!("{whose} {}", file.file_name().unwrap_or_default().to_string_lossy());
    let ports = Ports {
        interface: settings.get("in").unwrap_or("eth0").to_string(),
        sources: settings.all("source").filter_map(|text| text.parse().ok()).collect(),
    };
    read(&file.display().to_string(), text).yaml(&of, &ports)
}
