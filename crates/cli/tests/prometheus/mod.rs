//! Prometheus, which scrapes what a test runs, and the expressions of `monitoring/`. Each must have an
//! answer, so that no panel stays empty, and no alert silent, because of a wrong name.

#![allow(dead_code, reason = "each test program uses only a part")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest wait for answers; test machines are busy.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the path of a file of this repository.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns whether a program of Debian's package `prometheus` is installed. If it is not, the test is to be
/// skipped; in CI, this panics instead.
pub fn is_installed(program: &str) -> bool {
    let is = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is = is.is_ok_and(|status| status.success());
    assert!(is || std::env::var_os("CI").is_none(), "{program} is installed by ./setup");
    if !is {
        eprintln!("skipped: {program} is not installed");
    }
    is
}

/// An expression of an alert or a panel.
#[derive(Clone, Debug)]
pub struct Expression {
    /// The alert, or the panel's title.
    pub of: String,
    pub text: String,
    /// The labels that texts beside it refer to.
    shown: BTreeSet<String>,
}

/// Returns all alerts.
pub fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read("monitoring/weir.rules.yml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

pub fn dashboard() -> Value {
    serde_json::from_str(&read("monitoring/weir-dashboard.json")).unwrap()
}

/// Returns whether an expression is about weir-kube, or a metric is exported by it.
pub fn is_of_kube(text: &str) -> bool {
    text.contains("weir_kube_") || text.contains("weir-kube")
}

/// Returns the expressions of all alerts, panels and variables of the dashboard.
pub fn expressions() -> Vec<Expression> {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_string();
    let of_alert = |alert: &Value| Expression {
        of: text(&alert["alert"]),
        text: text(&alert["expr"]),
        shown: words_after(&alert["annotations"].to_string(), "$labels."),
    };
    let mut all: Vec<Expression> = alerts().iter().map(of_alert).collect();
    let dashboard = dashboard();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(definition) = variable["definition"].as_str() else { continue };
        let inside = definition.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inside.and_then(|inside| inside.split_once(", ")).expect("label_values");
        let shown = [label.to_string()].into();
        all.push(Expression { of: text(&variable["name"]), text: metric.into(), shown });
    }
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = text(&target["expr"]).replace("$__rate_interval", "1m");
            let expression = expression.replace("$instance", ".*").replace("$service", ".*");
            let shown = words_after(&text(&target["legendFormat"]), "{{");
            all.push(Expression { of: text(&panel["title"]), text: expression, shown });
        }
    }
    all
}

/// Returns the words that follow a mark.
fn words_after(text: &str, mark: &str) -> BTreeSet<String> {
    text.split(mark).skip(1).map(first_word).collect()
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|one| one.is_ascii_alphanumeric() || *one == '_').collect()
}

/// Returns an expression in which comparisons do not filter, so that it has an answer whenever both sides
/// have one with the same labels.
fn without_filters(expression: &str) -> String {
    let (mut text, mut rest, mut depth, mut quoted) = (String::new(), expression, 0, false);
    while let Some(one) = rest.chars().next() {
        let operators = ["==", "!=", ">=", "<=", ">", "<"];
        let operator =
            operators.iter().find(|operator| depth == 0 && !quoted && rest.starts_with(**operator));
        let length = operator.map_or(one.len_utf8(), |operator| operator.len());
        text += &rest[..length];
        rest = &rest[length..];
        match one {
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            _ if operator.is_some() && !rest.starts_with(" bool") => text += " bool",
            _ => {}
        }
    }
    text
}

/// A metric in an expression, with its selector and the labels that the selector names.
#[derive(Debug, PartialEq)]
struct MetricSelector {
    metric: String,
    text: String,
    labels: Vec<String>,
}

fn selectors(expression: &str) -> Vec<MetricSelector> {
    let mut all = Vec::new();
    let is_word = |one: char| one.is_ascii_alphanumeric() || one == '_';
    for (at, _) in expression.char_indices() {
        let rest = &expression[at..];
        let metric = first_word(rest);
        let begins = !expression[..at].ends_with(is_word);
        if !begins || !(metric.starts_with("weir_") || metric == "up") {
            continue;
        }
        let braces = rest[metric.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let inside = braces.map_or("", |(inside, _)| inside);
        let labels = inside.split(',').filter(|matcher| !matcher.is_empty()).map(first_word).collect();
        let text = if braces.is_some() { format!("{metric}{{{inside}}}") } else { metric.clone() };
        all.push(MetricSelector { metric, text, labels });
    }
    all
}

/// Returns the labels by which an expression groups or matches.
fn grouping(expression: &str) -> BTreeSet<String> {
    let lists = ["by (", "on (", "without (", "ignoring (", "group_left (", "group_right ("];
    let mut names = BTreeSet::new();
    for list in lists {
        let after = expression.split(list).skip(1).filter_map(|part| part.split_once(')'));
        names.extend(after.flat_map(|(inside, _)| inside.split(", ")).map(str::to_string));
    }
    names
}

/// The labels of a sample.
type SampleLabels = serde_json::Map<String, Value>;

/// A running Prometheus, in the network namespace of the thread that started it.
pub struct Prometheus {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Prometheus {
    /// Starts it with the shipped alerts; it scrapes these addresses, by job, every second.
    pub fn start(jobs: &[(&str, &[&str])]) -> Prometheus {
        let folder = std::env::temp_dir().join(format!("weir-prometheus-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rules = path("monitoring/weir.rules.yml").canonicalize().unwrap();
        let mut config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\nscrape_configs:\n",
            rules.display()
        );
        for (job, targets) in jobs {
            let targets = targets.join("\", \"");
            let _ = writeln!(config, "- job_name: {job}\n  static_configs: [{{ targets: [\"{targets}\"] }}]");
        }
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let mut command = Command::new("prometheus");
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        command.arg("--web.listen-address=127.0.0.1:0").current_dir(&folder).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // From here on, a failed test ends it.
        let mut prometheus = Prometheus { child, address: String::new(), folder };
        let lines = BufReader::new(prometheus.child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (sends, said) = mpsc::channel();
        // It must not block on a full pipe, nor fail on a closed one.
        std::thread::spawn(move || lines.for_each(|line| _ = sends.send(line)));
        let mut log = Vec::new();
        while prometheus.address.is_empty() {
            let line = said.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("{why}: {}", log.join("\n")));
            let address = line.contains("Listening on").then(|| line.split_once("address=")).flatten();
            if let Some((_, rest)) = address {
                prometheus.address = rest.split(' ').next().unwrap_or(rest).to_string();
            }
            log.push(line);
        }
        prometheus
    }

    /// Returns the labels of what an expression yields now.
    pub fn query(&self, expression: &str) -> Vec<SampleLabels> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        if text.starts_with("HTTP/1.0 503") {
            // It refuses to answer while it starts.
            return Vec::new();
        }
        let body = text.split_once("\r\n\r\n").map_or(&*text, |(_, body)| body);
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"));
        let samples = answer["data"]["result"].as_array();
        let samples = samples.unwrap_or_else(|| panic!("{expression}: {text}"));
        samples.iter().filter_map(|sample| sample["metric"].as_object().cloned()).collect()
    }

    /// Returns what is wrong with an expression.
    fn complaint(&self, expression: &Expression) -> Option<String> {
        let Expression { of, text, shown } = expression;
        let mut known = BTreeSet::new();
        for selector in selectors(text) {
            let found = self.query(&selector.text);
            if found.is_empty() {
                return Some(format!("{of}: there is no {}", selector.text));
            }
            known.extend(found.iter().flat_map(|labels| labels.keys().cloned()));
            let wrong =
                |label: &&String| self.query(&format!("{}{{{label}!=\"\"}}", selector.metric)).is_empty();
            if let Some(label) = selector.labels.iter().find(wrong) {
                return Some(format!("{of}: {} has no label {label}", selector.metric));
            }
        }
        if let Some(label) = grouping(text).iter().find(|label| !known.contains(*label) && *label != "le") {
            return Some(format!("{of}: no metric in it has the label {label}"));
        }
        let found = self.query(&without_filters(text));
        let missing = |label: &&String| found.iter().any(|labels| !labels.contains_key(*label));
        match shown.iter().find(missing) {
            _ if found.is_empty() => Some(format!("{of}: {text} yields nothing")),
            Some(label) => Some(format!("{of}: {text} yields something without {label}")),
            None => None,
        }
    }

    /// Waits until nothing is wrong with the expressions, and until exactly these metrics exist. Keeps
    /// traffic flowing meanwhile.
    #[track_caller]
    pub fn assert_answers(
        &self,
        mut expressions: Vec<Expression>,
        documented: &BTreeSet<String>,
        mut keep_up: impl FnMut(),
    ) {
        let begun = Instant::now();
        loop {
            keep_up();
            let complaints: Vec<Option<String>> =
                expressions.iter().map(|expression| self.complaint(expression)).collect();
            let mut answers = complaints.iter().map(Option::is_none);
            expressions.retain(|_| !answers.next().unwrap());
            let mut complaints: Vec<String> = complaints.into_iter().flatten().collect();
            let exported = self.exported();
            complaints.extend(documented.difference(&exported).map(|name| format!("nothing exports {name}")));
            complaints.extend(exported.difference(documented).map(|name| format!("no page has {name}")));
            if complaints.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{}", complaints.join("\n"));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the names of all metrics; those of histograms without the suffixes that Prometheus appends.
    fn exported(&self) -> BTreeSet<String> {
        let all = self.query("group by (__name__) ({__name__=~\"weir_.+\"})");
        let all: BTreeSet<String> =
            all.iter().filter_map(|labels| Some(labels["__name__"].as_str()?.to_string())).collect();
        let histogram = |name: &String| {
            let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            parts.filter(|name| all.contains(&format!("{name}_bucket"))).map(str::to_string)
        };
        all.iter().map(|name| histogram(name).unwrap_or_else(|| name.clone())).collect()
    }
}

/// Returns the metrics that a page names.
pub fn documented(page: &str) -> BTreeSet<String> {
    let page = read(page);
    let names = page.split('`').skip(1).step_by(2).filter(|code| code.starts_with("weir_"));
    names.map(first_word).collect()
}

/// Asserts that `promtool check metrics` only has these opinions about metrics. It only parses the older text
/// format, in which the name of a counter's family includes `_total`, too, and nothing marks the end. Its
/// opinions about names and help are the same.
pub fn promtool_accepts(text: &str, opinions: &[&str]) {
    if !is_installed("promtool") {
        return;
    }
    let body = text.split_once("\r\n\r\n").map_or(text, |(_, body)| body);
    let counters: Vec<&str> =
        body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    assert!(!counters.is_empty(), "{body}");
    let older = |line: &str| {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(&name) => {
                format!("# {kind} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    let older: String = body.lines().filter(|line| *line != "# EOF").map(older).collect();
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(older.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_opinion = |line: &str| line.is_empty() || opinions.iter().any(|opinion| line.contains(opinion));
    // promtool exits with 3 if it would prefer something else, and with 1 if it cannot parse the input.
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(3) && said.lines().all(is_opinion), "{code:?}: {said}");
}

#[test]
fn expressions_are_taken_apart() {
    let text = "sum by (a, b) (rate(weir_x_total{c=\"<\",d!~\"e|f\"}[1m]) > 0) and on (g) up == 1";
    let bool = "sum by (a, b) (rate(weir_x_total{c=\"<\",d!~\"e|f\"}[1m]) > bool 0) and on (g) up == bool 1";
    assert_eq!((without_filters(text), without_filters(bool)), (bool.to_string(), bool.to_string()));
    let found = selectors(text);
    let labels: Vec<&String> = found.iter().flat_map(|one| &one.labels).collect();
    assert_eq!((found.len(), format!("{labels:?}")), (2, "[\"c\", \"d\"]".to_string()), "{found:?}");
    assert_eq!(found[0].text, "weir_x_total{c=\"<\",d!~\"e|f\"}");
    assert_eq!(grouping(text).into_iter().collect::<Vec<_>>(), ["a", "b", "g"]);
}
