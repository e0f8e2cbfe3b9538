//! Follows a file of Kubernetes objects.

use crate::sources::{ServiceSource, SourceBoard, SourceKind, SourceTask, convert};
use anyhow::{Context, Result};
use std::sync::Arc;
use weir_app::file_watch::{FileThread, FileUser};

/// The thread of a source that is a file.
pub(super) struct SourceThread {
    pub source: Arc<ServiceSource>,
    _thread: FileThread,
}

impl SourceThread {
    /// Starts the thread of a source.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start((source, board): SourceTask) -> Result<SourceThread> {
        let SourceKind::File(path) = &source.kind else { anyhow::bail!("this source is not a file") };
        let user = SourceFile { source: source.clone(), board };
        let thread = FileThread::start("weir-source", path.clone(), user);
        Ok(SourceThread { source, _thread: thread.context("a source of services")? })
    }
}

/// Publishes the services of a file.
struct SourceFile {
    source: Arc<ServiceSource>,
    board: Arc<SourceBoard>,
}

impl FileUser for SourceFile {
    fn take(&mut self, text: &str) -> Result<(), String> {
        let converted = convert(&self.source, &self.source.of(), text)?;
        let counts = [converted.services.len(), converted.back_ends];
        self.board.publish(converted.services, counts, converted.notes);
        Ok(())
    }

    fn fail(&mut self, why: String) {
        self.board.fail(why);
    }

    fn confirm(&mut self) {
        self.board.confirm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SourceContent;
    use serde_json::{Map, json};

    #[test]
    fn garbage_changes_nothing_and_is_counted_and_an_empty_list_removes_everything() {
        let kind = SourceKind::File("f.json".into());
        let source = ServiceSource { name: "s".into(), kind, template: Map::new(), each: Map::new() };
        let (source, board) = (Arc::new(source), Arc::<SourceBoard>::default());
        let mut file = SourceFile { source, board: board.clone() };
        let names = || match board.found() {
            SourceContent::These(these) => {
                these.iter().map(|one| one["name"].as_str().unwrap().to_string()).collect()
            }
            SourceContent::Nothing | SourceContent::Failed => Vec::new(),
        };
        let spec = json!({ "clusterIP": "192.0.2.1", "ports": [{ "port": 80 }] });
        let text = json!({ "services": [{ "metadata": { "name": "a" }, "spec": spec }], "endpoints": [] });
        file.take(&text.to_string()).unwrap();
        assert_eq!((names(), board.status().state()), (vec!["default.a.80-tcp".to_string()], "ok"));
        let why = file.take(&text.to_string()[..40]).unwrap_err();
        assert!(why.contains("this is not JSON: "), "{why}");
        file.fail(why);
        assert_eq!((names().len(), board.status().state(), board.status().errors), (1, "failing", 1));
        file.take("{\"services\": [], \"endpoints\": []}").unwrap();
        assert_eq!((names().len(), board.status().state()), (0, "ok"));
    }
}
