//! The thread that asks the daemon for a page's contents, so that keys work even while a daemon does not
//! answer.

use super::pages::Listed;
use crate::kinds::KINDS;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use weir_app::page::items;
use weir_control::{Request, Show, What, ask};
use weir_daemon::Doorbell;

/// The sections that every page shows in its first line.
const HEAD: [&str; 6] = ["generation", "file", "uptime_s", "ledger", "balances", "apps"];

/// A request for the contents of a page, to the thread that asks the daemon.
#[derive(Clone, Copy)]
pub struct Question {
    /// The number of the page, which the answer repeats.
    pub number: usize,
    /// The page whose contents are wanted.
    pub listed: Listed,
    /// The generation of the program whose kinds of apps are known.
    pub known: Option<u64>,
}

/// What the daemon answered to a [`Question`].
pub struct Answer {
    /// The number of the page, as in the question, so that answers for a page that was left are recognised.
    pub number: usize,
    /// When the daemon answered.
    pub taken: Instant,
    /// The daemon's answer.
    pub said: Result<Value>,
    /// For each kind of app, whether any apps exist, unless the program is the known one.
    pub kinds: Option<Vec<bool>>,
}

/// The sending end of the questions and the receiving end of the answers.
pub struct Asker {
    questions: Sender<Question>,
    /// The answers, in the order of the questions.
    pub answers: Receiver<Answer>,
}

impl Asker {
    /// Starts the thread, which asks the daemon behind `socket` and rings when an answer has arrived.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(socket: PathBuf, doorbell: Doorbell) -> Result<Asker> {
        let (questions, asked) = channel::<Question>();
        let (answer, answers) = channel();
        let work = move || {
            for question in asked {
                if answer.send(answered(&socket, question)).is_err() {
                    return;
                }
                doorbell.ring();
            }
        };
        std::thread::Builder::new().name("weir-asker".into()).spawn(work).context("no thread to ask")?;
        Ok(Asker { questions, answers })
    }

    /// Asks a question; the answer arrives later.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub fn ask(&self, question: Question) -> Result<()> {
        self.questions.send(question).ok().context("the thread that asks has ended")
    }
}

/// Asks the daemon and returns its answer.
pub fn answered(socket: &Path, question: Question) -> Answer {
    let mut taken = Instant::now();
    let mut kinds = None;
    let mut said = || {
        let mut answer = show(socket, HEAD.iter().chain(question.listed.page.sections))?;
        taken = Instant::now();
        if answer["generation"].as_u64() != question.known {
            kinds = Some(configured(socket, &answer)?);
        }
        if let Some(kind) = question.listed.kind {
            let own = items(&answer["apps"]).iter().filter(|app| app["kind"] == kind.key);
            answer["apps"] = own.cloned().collect();
            answer["answers"] = items(&answer["apps"])
                .iter()
                .map(|app| {
                    let name = app["name"].as_str().unwrap_or_default();
                    let requests = question.listed.page.requests.iter();
                    let ask = |word: &&str| ask::<Value>(socket, &Request::app(name, json!({ "do": word })));
                    requests.map(ask).collect::<Result<Value>>()
                })
                .collect::<Result<Value>>()?;
        }
        Ok(answer)
    };
    let said = said();
    Answer { number: question.number, taken, said, kinds }
}

/// Asks for several sections at once, so that they are from the same moment.
fn show<'a>(socket: &Path, parts: impl Iterator<Item = &'a &'a str>) -> Result<Value> {
    let what = What::Several(parts.map(|part| (*part).to_string()).collect());
    ask(socket, &Request::Show(Show { what: Some(what), ..Show::default() }))
}

/// Returns, for each kind of app, whether any apps exist.
fn configured(socket: &Path, answer: &Value) -> Result<Vec<bool>> {
    let tables: Vec<&str> = KINDS.iter().flat_map(|kind| kind.tables).copied().collect();
    let tables = show(socket, tables.iter())?;
    let runs = |key: &str| items(&answer["apps"]).iter().any(|app| app["kind"] == key);
    let listed = |table: &&str| !items(&tables[*table]).is_empty();
    Ok(KINDS.iter().map(|kind| runs(kind.key) || kind.tables.iter().any(listed)).collect())
}
