//! `veilgrad features` and `veilgrad fewshot`: representations, and what little training they need.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::model::{image_bar, print_failures};
use super::{DeviceArg, JsonArg, output};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::data;
use crate::error::{Error, Result};
use crate::eval::few_shot::few_shot;
use crate::eval::probe::Labelled;
use crate::eval::represent::{Kind, Represent};
use crate::files::write_atomic;
use crate::rng::Key;

/// Which representation.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KindArg {
    /// The mean of all tokens: few-shot's.
    Mean,
    /// Per block the mean of the patch tokens: the linear probe's.
    Blocks,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Kind {
        match kind {
            KindArg::Mean => Kind::Mean,
            KindArg::Blocks => Kind::Blocks,
        }
    }
}

/// Write the representations of images, for other tools.
///
/// A .safetensors file holds `features` (N, F), `index` (N) and, for labelled images, `class` (N); a .npy file the features
/// alone. Images that cannot be decoded are left out and named.
#[derive(Debug, Args)]
pub struct Features {
    /// model.safetensors of a captioner or an autoencoder.
    checkpoint: PathBuf,
    /// Shards or a folder of images.
    images: PathBuf,
    /// Where to write: F.safetensors or F.npy.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Which representation.
    #[arg(long, value_enum, default_value = "mean")]
    kind: KindArg,
    /// The autoencoder's size, if the checkpoint does not say.
    #[arg(long)]
    model: Option<String>,
    /// Images on the device at once.
    #[arg(long, value_name = "N", default_value_t = 64)]
    physical_batch: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl Features {
    pub fn run(self) -> Result<()> {
        let ending = self.out.extension().and_then(|e| e.to_str()).unwrap_or("");
        if !["safetensors", "npy"].contains(&ending) {
            return Err(Error::invalid("--out", self.out.display(), "must end in .safetensors or .npy"));
        }
        let file = Checkpoint::read(&self.checkpoint)?;
        let engine = self.device.open()?;
        let kind = self.kind.into();
        let model = self.model.as_deref();
        let mut represent = Represent::open(
            engine.as_ref(),
            &file,
            &self.checkpoint,
            model,
            kind,
            self.physical_batch.max(1),
        )?;
        let source: std::sync::Arc<dyn data::Source> = data::open(&self.images)?.into();
        let bar = image_bar(source.as_ref(), self.json.json);
        let (all, indices, report) = represent.all(source, |n| bar.inc(n))?;
        bar.finish_and_clear();
        print_failures(&report);
        let (rows, width) = (all.labels.len(), all.width);
        if ending == "npy" {
            write_atomic(&self.out, &npy(&all.features, rows, width))?;
        } else {
            let mut out = Checkpoint::default();
            let mut add = |name: &str, shape: &[usize], values: Vec<f32>| {
                out.tensors.insert(name.into(), Tensor { shape: crate::shape::Shape::new(shape), values });
            };
            if indices.last().is_some_and(|&last| last >= 1 << 24) {
                let why = "more images than an index in f32 can tell apart: write a .npy file";
                return Err(Error::invalid("--out", self.out.display(), why));
            }
            add("index", &[rows], indices.iter().map(|&i| i as f32).collect());
            if all.labels.iter().any(|&l| l != u32::MAX) {
                let class = |&l: &u32| if l == u32::MAX { -1.0 } else { l as f32 };
                add("class", &[rows], all.labels.iter().map(class).collect());
            }
            add("features", &[rows, width], all.features);
            out.write(&self.out)?;
        }
        if self.json.json {
            output::json(&json!({ "rows": rows, "width": width, "failed": report.failed, "out": self.out }));
        } else {
            println!("{rows} rows of {width} in {}", self.out.display());
        }
        Ok(())
    }
}

/// A matrix in NumPy's format, version 1.0.
fn npy(values: &[f32], rows: usize, width: usize) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    // Magic, version, length and header together end at a multiple of 64, in a line feed.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    values.iter().for_each(|x| out.extend(x.to_le_bytes()));
    out
}

/// Few-shot classification: logistic regression on the representations of a few labelled images per class (DP-Cap).
///
/// The labelled images are used as they are: this is not private.
#[derive(Debug, Args)]
pub struct FewShot {
    /// model.safetensors of a captioner or an autoencoder.
    checkpoint: PathBuf,
    /// Labelled training images: shards with .cls members, or a folder with a sub-folder per class.
    #[arg(long, value_name = "PATH")]
    train: PathBuf,
    /// Labelled test images.
    #[arg(long, value_name = "PATH")]
    test: PathBuf,
    /// Training images per class.
    #[arg(long, value_delimiter = ',', default_value = "1,2,5,10")]
    shots: Vec<usize>,
    /// Draws of the training images.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The autoencoder's size, if the checkpoint does not say.
    #[arg(long)]
    model: Option<String>,
    /// Images on the device at once.
    #[arg(long, value_name = "N", default_value_t = 64)]
    physical_batch: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl FewShot {
    pub fn run(self) -> Result<()> {
        let file = Checkpoint::read(&self.checkpoint)?;
        let engine = self.device.open()?;
        let batch = self.physical_batch.max(1);
        let model = self.model.as_deref();
        let mut represent =
            Represent::open(engine.as_ref(), &file, &self.checkpoint, model, Kind::Mean, batch)?;
        let mut read = |path: &Path| -> Result<Labelled> {
            let source: std::sync::Arc<dyn data::Source> = data::open(path)?.into();
            let bar = image_bar(source.as_ref(), self.json.json);
            let (all, _, report) = represent.all(source, |n| bar.inc(n))?;
            bar.finish_and_clear();
            print_failures(&report);
            Ok(all)
        };
        let (train, test) = (read(&self.train)?, read(&self.test)?);
        let key = Key::from_seed(self.seed);
        let results = self
            .shots
            .iter()
            .map(|&shots| few_shot(&train, &test, shots, self.repeats, &key))
            .collect::<Result<Vec<_>>>()?;
        if self.json.json {
            output::json(&json!({ "examples": test.labels.len(), "shots": results }));
            return Ok(());
        }
        let mut rows = vec![vec!["shots per class".to_owned(), "top-1".into(), "+-".into()]];
        for r in &results {
            let percent = |x: f64| format!("{:.1} %", 100.0 * x);
            rows.push(vec![r.shots.to_string(), percent(r.mean), percent(r.deviation)]);
        }
        output::table(&rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::npy;

    #[test]
    fn a_npy_file_has_an_aligned_header() {
        for (rows, width) in [(1, 1), (3, 128), (12_345, 9216)] {
            let file = npy(&[1.0; 3], rows, width);
            let length = u16::from_le_bytes([file[8], file[9]]) as usize;
            assert_eq!((10 + length) % 64, 0);
            assert_eq!(file[10 + length - 1], b'\n');
            assert_eq!(file.len(), 10 + length + 12);
            assert!(String::from_utf8_lossy(&file[10..]).contains(&format!("({rows}, {width})")));
        }
    }
}
