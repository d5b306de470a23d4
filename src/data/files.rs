//! Single image files as a source: what the command line names.

use std::path::PathBuf;

use super::{Record, Source, fingerprint, stamp};
use crate::error::{Error, Result};

/// Image files in the order given. No classes.
#[derive(Clone, Debug)]
pub struct Files {
    files: Vec<PathBuf>,
    fingerprint: u64,
}

impl Files {
    /// These files. Whether they hold images shows when they are read.
    ///
    /// # Errors
    /// [`Error::Io`] for one that is not there.
    pub fn new(files: Vec<PathBuf>) -> Result<Self> {
        let stamped = files
            .iter()
            .map(|file| stamp(file).map(|(size, time)| (file.clone(), size, time)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Files { fingerprint: fingerprint(&stamped), files })
    }
}

impl Source for Files {
    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn record(&self, index: u64) -> Result<Record> {
        let file = &self.files[index as usize];
        let image = std::fs::read(file).map_err(|e| Error::io(file, e))?;
        Ok(Record { name: file.display().to_string(), image, ..Record::default() })
    }

    fn classes(&self) -> &[String] {
        &[]
    }

    fn describe(&self) -> String {
        format!("{} image files", self.files.len())
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}
