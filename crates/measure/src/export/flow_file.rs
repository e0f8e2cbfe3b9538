//! A Parquet file of flow records. It is written under a temporary name, and gets its final name when it is
//! complete and on disk, so that readers of `*.parquet` only find complete files. An output that is not a
//! regular file, such as a device or a FIFO, is written to directly
//! ([`outfile::Whole`](weir_config::outfile::Whole)).

#[cfg(feature = "parquet")]
mod with {
    use crate::export::Given;
    use crate::export::parquet::Writer;
    use anyhow::{Context, Result};
    use std::fs::File;
    use std::io::BufWriter;
    use std::path::Path;
    use weir_config::outfile::{self, Whole};

    /// A file that is being written; without [`FlowFile::finish`], it is removed.
    pub struct FlowFile {
        whole: Whole,
        writer: Writer<BufWriter<File>>,
    }

    impl FlowFile {
        /// Creates a file with row groups of at most `group_rows` rows.
        ///
        /// # Errors
        /// The file cannot be created.
        pub fn create(path: &Path, group_rows: usize) -> Result<FlowFile> {
            let (file, whole) = Whole::begin(path, outfile::PUBLIC).context("a file cannot be created")?;
            Ok(FlowFile { whole, writer: Writer::new(BufWriter::new(file), group_rows)? })
        }

        /// Appends a record. After an error the file cannot be finished.
        ///
        /// # Errors
        /// The file cannot be written.
        pub fn add(&mut self, given: Given) -> Result<()> {
            Ok(self.writer.add(given)?)
        }

        /// Returns the number of its records.
        #[must_use]
        pub fn rows(&self) -> u64 {
            self.writer.rows()
        }

        /// Returns its approximate size in bytes.
        #[must_use]
        pub fn bytes(&self) -> u64 {
            self.writer.bytes()
        }

        /// Writes the rest, and gives the file its name.
        ///
        /// # Errors
        /// The file cannot be written.
        pub fn finish(self) -> Result<()> {
            let file = self.writer.finish()?.into_inner()?;
            Ok(self.whole.finish(&file)?)
        }

        /// Makes subsequent writes fail with a full disk.
        #[cfg(test)]
        pub fn fill_disk(&mut self) {
            let full = File::options().write(true).open("/dev/full").unwrap();
            self.writer = Writer::new(BufWriter::new(full), 100).unwrap();
        }
    }
}

/// For a build without Parquet.
#[cfg(not(feature = "parquet"))]
mod without {
    use crate::export::{Given, NO_PARQUET};
    use anyhow::{Result, bail};
    use std::convert::Infallible;
    use std::path::Path;

    /// A file that cannot be created.
    /// A file that cannot be created.
    pub struct FlowFile(Infallible);

    impl FlowFile {
        /// Fails, and says why.
        /// Refuses.
        ///
        /// # Errors
        /// In any case.
        pub fn create(_: &Path, _: usize) -> Result<FlowFile> {
            bail!("{}", NO_PARQUET.unwrap_or_default())
        }

        /// Is never called.
        /// Is never called.
        ///
        /// # Errors
        /// None.
        pub fn add(&mut self, _: Given) -> Result<()> {
            match self.0 {}
        }

        /// Is never called.
        /// Is never called.
        ///
        /// # Errors
        /// None.
        pub fn finish(self) -> Result<()> {
            match self.0 {}
        }
    }
}

#[cfg(feature = "parquet")]
pub use with::FlowFile;
#[cfg(not(feature = "parquet"))]
pub use without::FlowFile;
