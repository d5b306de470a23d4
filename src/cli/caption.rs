//! `veilgrad caption`: what does the model see?

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::model::{ImageArgs, Model, image_bar, print_failures};
use super::{DeviceArg, JsonArg, output};
use crate::data::augment::Transform;
use crate::error::{Error, Result};
use crate::eval::captioner::look_at_all;

/// Write a caption for each image.
///
/// Example: veilgrad caption out/captioner/model.safetensors photo.jpg other.png
#[derive(Debug, Args)]
pub struct CaptionCommand {
    /// model.safetensors of a captioner.
    checkpoint: PathBuf,
    #[command(flatten)]
    images: ImageArgs,
    /// Texts that beam search keeps; 1 takes the likeliest word each time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    beams: usize,
    /// Images on the device at once.
    #[arg(long, value_name = "N", default_value_t = 16)]
    physical_batch: usize,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl CaptionCommand {
    pub fn run(self) -> Result<()> {
        if self.beams == 0 || self.physical_batch == 0 {
            return Err(Error::invalid("--beams and --physical-batch", 0, "must be positive"));
        }
        let model = Model::read(&self.checkpoint)?;
        let source = self.images.open()?;
        let engine = self.device.open()?;
        let batch = self.physical_batch.min(source.len().max(1) as usize);
        let mut eye = model.eye(engine.as_ref(), batch)?;
        let rows = if self.beams == 1 { batch } else { self.beams };
        let mut pen = model.pen(engine.as_ref(), rows)?;
        let bar = image_bar(source.as_ref(), self.json.json);
        let report = look_at_all(&mut eye, source.clone(), Transform::Whole, |seen| {
            let memories: Vec<_> = seen.iter().map(|(_, _, m)| m).collect();
            let captions = match self.beams {
                1 => pen.greedy(&memories)?.into_iter().map(|c| vec![c]).collect(),
                _ => memories.iter().map(|m| pen.beam(m)).collect::<Result<Vec<_>>>()?,
            };
            for ((index, ..), captions) in seen.iter().zip(captions) {
                let name = source.record(*index)?.name;
                let best = captions.first().map_or("", |c| c.text.as_str());
                if self.json.json {
                    output::json(&json!({ "image": name, "caption": best, "captions": captions }));
                } else {
                    bar.suspend(|| println!("{name}: {best}"));
                }
            }
            bar.inc(seen.len() as u64);
            Ok(())
        })?;
        bar.finish_and_clear();
        print_failures(&report);
        Ok(())
    }
}
