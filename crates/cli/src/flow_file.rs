//! A Parquet file of flow records. It is written under a temporary name, and gets its own when it is whole
//! and on the disk, so that readers of `*.parquet` find whole files only.

#[cfg(feature = "parquet")]
mod with {
    use anyhow::{Context, Result};
    use measure::export::Given;
    use measure::export::parquet::Writer;
    use std::ffi::OsString;
    use std::fs::File;
    use std::io::BufWriter;
    use std::path::{Path, PathBuf};

    /// A file that is being written; without [`FlowFile::finish`], nothing is left of it.
    pub struct FlowFile {
        part: PathBuf,
        path: PathBuf,
        writer: Option<Writer<BufWriter<File>>>,
    }

    impl FlowFile {
        /// Begins a file with row groups of at most so many rows.
        pub fn create(path: &Path, group_rows: usize) -> Result<FlowFile> {
            let mut part: OsString = path.into();
            part.push(".part");
            let part = PathBuf::from(part);
            let file = File::create(&part).context("a file cannot be created")?;
            let writer = Some(Writer::new(BufWriter::new(file), group_rows)?);
            Ok(FlowFile { part, path: path.to_path_buf(), writer })
        }

        /// Appends a record. After an error the file cannot be finished.
        pub fn add(&mut self, given: Given) -> Result<()> {
            Ok(self.writer.as_mut().map_or(Ok(()), |writer| writer.add(given))?)
        }

        /// The number of its records.
        pub fn rows(&self) -> u64 {
            self.writer.as_ref().map_or(0, Writer::rows)
        }

        /// About how many bytes it has.
        pub fn bytes(&self) -> u64 {
            self.writer.as_ref().map_or(0, Writer::bytes)
        }

        /// Writes what is left, and gives the file its name.
        pub fn finish(mut self) -> Result<()> {
            let Some(writer) = self.writer.take() else { return Ok(()) };
            let finished = writer.finish().map_err(anyhow::Error::from).and_then(|file| {
                file.into_inner()?.sync_all()?;
                Ok(std::fs::rename(&self.part, &self.path)?)
            });
            if finished.is_err() {
                self.remove();
            }
            finished
        }

        /// If it cannot be removed, the error that was told is the reason.
        fn remove(&self) {
            let _ = std::fs::remove_file(&self.part);
        }

        /// What follows finds the disk full.
        #[cfg(test)]
        pub fn fill_disk(&mut self) {
            let full = File::options().write(true).open("/dev/full").unwrap();
            self.writer = Some(Writer::new(BufWriter::new(full), 100).unwrap());
        }
    }

    impl Drop for FlowFile {
        fn drop(&mut self) {
            if self.writer.take().is_some() {
                self.remove();
            }
        }
    }
}

/// Of a build without Parquet: there is none.
#[cfg(not(feature = "parquet"))]
mod without {
    use anyhow::{Result, bail};
    use measure::export::{Given, NO_PARQUET};
    use std::convert::Infallible;
    use std::path::Path;

    pub struct FlowFile(Infallible);

    impl FlowFile {
        pub fn create(_: &Path, _: usize) -> Result<FlowFile> {
            bail!("{}", NO_PARQUET.unwrap_or_default())
        }

        pub fn add(&mut self, _: Given) -> Result<()> {
            match self.0 {}
        }

        pub fn finish(self) -> Result<()> {
            match self.0 {}
        }
    }
}

#[cfg(feature = "parquet")]
pub use with::FlowFile;
#[cfg(not(feature = "parquet"))]
pub use without::FlowFile;
