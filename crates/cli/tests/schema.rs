//! `weir schema`, docs/reference/configuration.md and the configuration parser agree: what runs is valid,
//! what is misspelt is refused, and every word of the schema is documented.

use jsonschema::Validator;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn validator() -> Validator {
    jsonschema::draft202012::new(&cli::config::schema()).expect("the schema is one of draft 2020-12")
}

/// The document as an editor parses it.
fn instance(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn configs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files = std::fs::read_dir(folder).expect("configs").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn the_schema_is_a_schema() {
    assert!(jsonschema::meta::is_valid(&cli::config::schema()));
}

#[test]
fn every_configuration_is_valid() {
    let validator = validator();
    for path in configs() {
        assert_valid(&validator, &std::fs::read_to_string(&path).expect("a text"));
    }
}

fn assert_valid(validator: &Validator, text: &str) {
    let instance = instance(text);
    let errors = validator.iter_errors(&instance).map(|one| format!("{}: {one}", one.instance_path()));
    let errors: Vec<_> = errors.collect();
    assert!(errors.is_empty(), "{text}: {errors:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that describe the keys.
fn reference() -> String {
    let page = |name: &str| {
        std::fs::read_to_string(root().join("docs/reference").join(name)).expect("the documentation")
    };
    let pages = ["configuration.md", "control.md", "fields.md", "load-balancer.md", "bond.md"];
    let measure = "../../crates/measure/README.md";
    pages.into_iter().chain([measure]).map(page).collect()
}

/// All pages about weir: those in `docs/`, and the README files of crates.
fn pages() -> Vec<PathBuf> {
    let (mut open, mut pages) = (vec![root().join("docs"), root().join("crates")], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The blocks of YAML in a text.
fn examples(text: &str) -> Vec<&str> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix("yaml\n")).collect()
}

/// The parts that an example omits are in the file that docs/reference/configuration.md gives as the rest.
#[test]
fn every_example_of_the_documentation_can_be_run() {
    let (validator, text) = (validator(), reference());
    let rest = text.split("the rest of the file is this:").nth(1).expect("the rest of the examples");
    let rest = examples(rest)[0];
    let mut run = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for example in examples(&text) {
            let said =
                |line: &str| example.lines().any(|own| own.split(':').next() == line.split(':').next());
            let part = !example.lines().any(|line| line.starts_with("ports:"));
            let missing: Vec<&str> = rest.lines().filter(|line| part && !said(line)).collect();
            let file = format!("{example}\n{}\n", missing.join("\n"));
            assert_valid(&validator, &file);
            let file = file.replace("${NODE.pool}", "10.9.0.0/28");
            let loaded = cli::config::read(&page.display().to_string(), &file);
            assert!(loaded.plan.is_some(), "{}:\n{file}\n{}", page.display(), loaded.report);
            run += 1;
        }
    }
    assert!(run > 40, "only {run} examples were found");
}

#[test]
fn every_word_of_the_schema_is_in_the_documentation() {
    let text = reference();
    let code: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    let mut all = BTreeSet::new();
    words(&cli::config::schema(), &mut all);
    // Any field may be one level in.
    let said =
        |word: &&String| code.iter().any(|code| has(code, word.strip_prefix("inner.").unwrap_or(word)));
    let missing: Vec<_> = all.iter().filter(|word| !said(word)).collect();
    assert!(missing.is_empty(), "the pages of `reference()` do not say: {missing:?}");
}

/// Collects the keys and words that a schema allows.
fn words(schema: &Value, into: &mut BTreeSet<String>) {
    let keys = schema["properties"].as_object().into_iter().flat_map(|keys| keys.keys().cloned());
    let constant = schema["const"].as_str().map(str::to_string);
    let choices =
        schema["enum"].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_string));
    into.extend(keys.chain(constant).chain(choices));
    match schema {
        Value::Object(map) => map.values().for_each(|value| words(value, into)),
        Value::Array(list) => list.iter().for_each(|value| words(value, into)),
        _ => {}
    }
}

fn has(code: &str, word: &str) -> bool {
    let joins = |beside: Option<char>| beside.is_some_and(|one| one.is_alphanumeric() || "_-".contains(one));
    code.match_indices(word).any(|(at, _)| {
        !joins(code[..at].chars().next_back()) && !joins(code[at + word.len()..].chars().next())
    })
}

/// A valid pipe, and what makes it invalid.
#[test]
fn what_weir_refuses_by_its_shape_the_schema_refuses() {
    let file = |ports: &str, pipe: &str| {
        format!(
            "ports: {{ p0: {{ {ports} }} }}\npipes: {{ a: {{ {pipe} }} }}\ngroups: {{ g: {{ targets: {{ t: \
                p0 }} }} }}\n"
        )
    };
    let (mem, good) = ("mem: ", "type: basic, forward: p0, miss: drop");
    let hash = "type: hash, hash: 5-tuple, group: g, forward: g, miss: drop";
    let validator = validator();
    for valid in [file(mem, good), file(mem, hash), file("xdp: eth0, queues: [0, 0x1]", good)] {
        assert!(validator.is_valid(&instance(&valid)), "{valid}");
    }
    for wrong in [
        "ports: {}\nportz: {}\n".to_string(),
        file("mem: , speed: 1", good),
        file("queues: all", good),
        file("mem: , pcap: {}", good),
        file("mem: , queues: all", good),
        file("xdp: eth0, mode: fast", good),
        file("mem: , mac: 02:00", good),
        file("mem: , fault: { loss: 2 }", good),
        file(mem, "type: basik, forward: p0, miss: drop"),
        file(mem, "type: basic, forward: p0"),
        file(mem, "type: hash, hash: 5-tuple, forward: p0, miss: drop"),
        file(mem, "type: basic, group: g, forward: p0, miss: drop"),
        file(mem, &format!("{good}, match: {{ ipv4.scr: per_entry }}")),
        file(mem, &format!("{good}, match: {{ vlan.vid: 4096 }}")),
        file(mem, &format!("{good}, match: {{ eth.dst: 1.2.3.4 }}")),
        file(mem, &format!("{good}, action: [dorp]")),
        file(mem, &format!("{good}, action: [{{ set: {{ ip.protocol: 1 }} }}]")),
        file(mem, &format!("{good}, action: [{{ push_vlan: {{ pcp: 1 }} }}]")),
        file(mem, &format!("{good}, monitor: {{ idle_timeout: 30 }}")),
        file(mem, &format!("{good}, capacity: 0")),
        file(mem, &format!("{good}, entries: [{{ set: {{ eth.dts: 1 }} }}]")),
        file(mem, &format!("{good}, entries: [{{ prio: 1 }}]")),
    ] {
        assert!(!validator.is_valid(&instance(&wrong)), "{wrong}");
        assert!(cli::config::read("t", &wrong).plan.is_none(), "{wrong}");
    }
}
