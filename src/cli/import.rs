//! `veilgrad import` and `veilgrad export`: published weights in and out.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{JsonArg, output};
use crate::checkpoint::import::{ImportOptions, import};
use crate::checkpoint::{Checkpoint, export};
use crate::error::Result;

/// Read published weights (.pth, .pt) and write them as safetensors, under their published names.
///
/// The file is read without running any code: anything in it but tensors, dicts, lists, numbers and strings is refused by
/// its name. What the weights are of is told by their names; missing or misshaped tensors are an error.
#[derive(Debug, Args)]
pub struct Import {
    /// A file of torch.save, or a safetensors file to change.
    file: PathBuf,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Interpolate the position tables (bicubic) for images of this side in pixels.
    #[arg(long, value_name = "N")]
    resolution: Option<usize>,
    /// Cut or extend the table of caption positions to this many tokens.
    #[arg(long, value_name = "N")]
    caption_length: Option<usize>,
    /// Take over weights that are not finite; other commands refuse them.
    #[arg(long)]
    allow_nan: bool,
    #[command(flatten)]
    json: JsonArg,
}

impl Import {
    pub fn run(self) -> Result<()> {
        let options = ImportOptions {
            resolution: self.resolution,
            caption_length: self.caption_length,
            allow_nan: self.allow_nan,
        };
        let (checkpoint, done) = import(&self.file, &options)?;
        checkpoint.write(&self.out)?;
        if self.json.json {
            output::json(&json!({ "out": self.out, "import": done }));
            return Ok(());
        }
        let of = &done.description;
        let model = of.model.as_deref().unwrap_or("of no preset's sizes");
        let images =
            if of.image > 0 { format!(", {} px, patch {}", of.image, of.patch) } else { String::new() };
        let captions = of.caption_length.map(|t| format!(", captions of {t} tokens")).unwrap_or_default();
        println!("{}: {} ({model}){images}{captions}", self.file.display(), of.kind);
        println!("{} tensors, {} values", done.tensors, done.values);
        for (what, names) in [
            ("left out, beside the weights", &done.ignored),
            ("left out, unknown to the model", &of.unexpected),
            ("resized", &done.resized),
        ] {
            if !names.is_empty() {
                println!("{what}: {}", names.join(", "));
            }
        }
        println!("written: {}", self.out.display());
        Ok(())
    }
}

/// Write a checkpoint as a file that torch.load reads: {"model": state dict, "metadata": texts}.
#[derive(Debug, Args)]
pub struct Export {
    /// A safetensors file.
    file: PathBuf,
    /// The PyTorch file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

impl Export {
    pub fn run(self) -> Result<()> {
        let checkpoint = Checkpoint::read(&self.file)?;
        export::write(&checkpoint, &self.out)?;
        let tensors = checkpoint.tensors.len();
        if self.json.json {
            output::json(&json!({ "out": self.out, "tensors": tensors }));
        } else {
            println!("{tensors} tensors: {}", self.out.display());
        }
        Ok(())
    }
}
