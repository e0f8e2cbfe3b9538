//! Names of addresses ([`weir_app::names`]): follows the configured file, and answers clients of control over
//! HTTP, which may also set names. Neither involves the main thread or a worker.

use super::http::{self, Reply};
use anyhow::Result;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tracing::{info, warn};
use weir_app::file_watch::{FileThread, FileUser};
use weir_app::http::Conditions;
use weir_app::names::{NameTable, NamesBoard, NamesState, StaleNames, read_file, read_set};
use weir_control::addresses::{NameSet, NamesSet};
use weir_control::answer;

/// Where names come from.
#[derive(Default)]
pub struct NameSources {
    board: NamesBoard,
    /// The configured file, and the thread that follows it.
    file: Option<(PathBuf, FileThread)>,
}

impl NameSources {
    /// Returns the board where names are published.
    pub fn board(&self) -> &NamesBoard {
        &self.board
    }

    /// Follows this file from now on, or no file.
    pub fn follow(&mut self, path: Option<&Path>) -> Result<()> {
        if self.file.as_ref().map(|(path, _)| path.as_path()) == path {
            return Ok(());
        }
        // The thread must have ended before its names are forgotten.
        self.file = None;
        self.board.forget_file();
        let Some(path) = path else { return Ok(()) };
        let user = NamesFile { path: path.display().to_string(), board: self.board.clone() };
        let thread = FileThread::start("weir-names", path.to_path_buf(), user)?;
        self.file = Some((path.to_path_buf(), thread));
        Ok(())
    }
}

/// Publishes the names of a file.
struct NamesFile {
    path: String,
    board: NamesBoard,
}

impl FileUser for NamesFile {
    fn take(&mut self, text: &str) -> Result<(), String> {
        let table = read_file(&self.path, text.to_string())?;
        info!("{}: {} names of addresses", self.path, table.len());
        self.board.set_file(table);
        Ok(())
    }

    fn fail(&mut self, why: String) {
        warn!("{}: the names of addresses stay as they are: {why}", self.path);
        self.board.fail_file(why);
    }

    fn confirm(&mut self) {
        self.board.confirm_file();
    }
}

/// Returns the rows of `weir show names`.
pub fn rows(file: Option<&Path>, board: &NamesBoard) -> Vec<answer::NameSource> {
    let NamesState { of_file, failure, age_s, of_api, etag } = board.state();
    let state = match (&failure, age_s) {
        (Some(_), _) => "failing",
        (None, Some(_)) => "ok",
        (None, None) => "starting",
    };
    let file = file.map(|path| answer::NameSource {
        source: path.display().to_string(),
        state: state.to_string(),
        names: of_file,
        age_s,
        etag: None,
        reason: failure.unwrap_or_default(),
    });
    let api = answer::NameSource {
        source: "api".to_string(),
        state: "ok".to_string(),
        names: of_api,
        age_s: None,
        etag: Some(etag),
        reason: String::new(),
    };
    file.into_iter().chain([api]).collect()
}

/// Answers a request for names. `known` are the tags of `If-None-Match`. Returns the answer and its tag.
pub fn answer(
    board: &NamesBoard,
    is_get: bool,
    (conditions, known): (&Conditions, Option<&[String]>),
    body: &Value,
) -> Result<(Reply, String), (StatusCode, String)> {
    if is_get {
        let table = board.api();
        let tag = table.tag();
        if known.is_some_and(|known| known.contains(&tag)) {
            return Ok((http::json(StatusCode::NOT_MODIFIED, String::new()), tag));
        }
        let all = json!(NameSet { names: table.all() });
        return Ok((http::json(StatusCode::OK, format!("{all}\n")), tag));
    }
    let table = read_set(body).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let (names, etag) = (table.len(), table.tag());
    let none = NameTable::default().tag();
    let is_expected = |tag: &str| {
        let tags = conditions.tags.as_ref();
        let is_one = tags.is_none_or(|tags| tags.iter().any(|one| one == tag || one == "*"));
        is_one && (!conditions.absent || tag == none)
    };
    let stale = |tag: &str| {
        (StatusCode::PRECONDITION_FAILED, format!("the names have another tag, \"{tag}\": read them again"))
    };
    let changed = if conditions.dry_run {
        let tag = board.api().tag();
        if !is_expected(&tag) {
            return Err(stale(&tag));
        }
        tag != etag
    } else {
        board.set_api(table, is_expected).map_err(|StaleNames(tag)| stale(&tag))?
    };
    let text = format!("{}\n", json!(NamesSet { names, changed, etag: etag.clone() }));
    Ok((http::json(StatusCode::OK, text), etag))
}
