//! `veilgrad synthetic`: a contact sheet of synthetic images.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{DeviceArg, JsonArg, output};
use crate::data::synthetic::{FAMILIES, contact_sheet};
use crate::error::{Error, Result};
use crate::rng::Key;

/// Draw a contact sheet of the synthetic images that step 1 trains on: every family, several images each.
#[derive(Debug, Args)]
pub struct Sheet {
    /// The picture to write.
    #[arg(long, value_name = "FILE", default_value = "synthetic.png")]
    out: PathBuf,
    /// Side of an image in pixels.
    #[arg(long, default_value_t = 96)]
    size: usize,
    /// Images of each family.
    #[arg(long, default_value_t = 8)]
    columns: usize,
    /// Seed of the images.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    json: JsonArg,
}

impl Sheet {
    pub fn run(self) -> Result<()> {
        let engine = self.device.open()?;
        let rows = FAMILIES.len();
        let sheet =
            contact_sheet(engine.as_ref(), &Key::from_seed(self.seed), self.size, rows, self.columns)?;
        sheet.save(&self.out).map_err(|e| Error::io(&self.out, std::io::Error::other(e)))?;
        if self.json.json {
            output::json(&json!({ "out": self.out, "families": rows, "device": engine.describe() }));
        } else {
            println!("{rows} families, {} images each: {}", self.columns, self.out.display());
        }
        Ok(())
    }
}
