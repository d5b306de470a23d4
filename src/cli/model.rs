//! A captioner's checkpoint and the images that a command names: what several commands share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::output;
use crate::checkpoint::Checkpoint;
use crate::data::words::Words;
use crate::data::{self, Files, Source};
use crate::error::Result;
use crate::eval::captioner::{self, Eye, Judge, Pen};
use crate::model::captioner::CaptionerConfig;
use crate::record::Engine;

/// A captioner on disk.
pub struct Model {
    path: PathBuf,
    file: Checkpoint,
    pub config: CaptionerConfig,
    pub words: Arc<Words>,
}

impl Model {
    /// Reads a checkpoint.
    ///
    /// # Errors
    /// [`crate::Error::Checkpoint`] if it is no captioner's.
    pub fn read(path: &Path) -> Result<Self> {
        let file = Checkpoint::read(path)?;
        let (config, words) = captioner::open(&file, path)?;
        Ok(Model { path: path.to_path_buf(), file, config, words })
    }

    pub fn eye(&self, engine: &dyn Engine, batch: usize) -> Result<Eye> {
        Eye::open(engine, &self.config, &self.file, &self.path, batch)
    }

    pub fn pen(&self, engine: &dyn Engine, rows: usize) -> Result<Pen> {
        Pen::open(engine, &self.config, &self.words, &self.file, &self.path, rows)
    }

    pub fn judge(&self, engine: &dyn Engine, rows: usize, tokens: usize) -> Result<Judge> {
        Judge::open(engine, &self.config, &self.file, &self.path, rows, tokens)
    }
}

/// Images on the command line.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// Image files, one folder of images, or one set of shards (a .tar, a folder of them, x-{000..041}.tar).
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
}

impl ImageArgs {
    /// The images as a source.
    ///
    /// # Errors
    /// [`crate::Error::Io`] for what is not there.
    pub fn open(&self) -> Result<Arc<dyn Source>> {
        open_images(&self.images)
    }
}

/// Files as they are named, or what one path stands for.
///
/// # Errors
/// [`crate::Error::Io`] for what is not there.
pub fn open_images(paths: &[PathBuf]) -> Result<Arc<dyn Source>> {
    match paths {
        [one] if !one.is_file() || one.extension().is_some_and(|e| e.eq_ignore_ascii_case("tar")) => {
            Ok(data::open(one)?.into())
        }
        files => Ok(Arc::new(Files::new(files.to_vec())?)),
    }
}

/// Says which images could not be used.
pub fn print_failures(report: &data::loader::Report) {
    if report.failed > 0 {
        eprintln!("{} images could not be used:", report.failed);
        report.named.iter().for_each(|f| eprintln!("  {f}"));
    }
}

/// A progress bar over a source; hidden for a few images, which are done before one could look.
pub fn image_bar(source: &dyn Source, quiet: bool) -> indicatif::ProgressBar {
    output::bar(source.len(), "images", quiet || source.len() < 16)
}
