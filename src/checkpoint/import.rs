//! From published weights to our files and back.

use std::io::Read;
use std::path::Path;

use serde::Serialize;

use super::kind::{self, Description, Kind};
use super::{Checkpoint, Tensor, pytorch, resize};
use crate::error::{Error, Result};
use crate::model::captioner::LONGEST;

/// What to change on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Interpolate the position tables for images of this side, pixels.
    pub resolution: Option<usize>,
    /// Cut or extend the table of caption positions to this many tokens.
    pub caption_length: Option<usize>,
    /// Accept weights that are not finite.
    pub allow_nan: bool,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// What the file is of, after all changes.
    #[serde(flatten)]
    pub description: Description,
    /// Tensors taken over.
    pub tensors: usize,
    /// Values of these.
    pub values: usize,
    /// Entries beside the weights that were left out (`optimizer`).
    pub ignored: Vec<String>,
    /// Position tables that were changed, with both shapes.
    pub resized: Vec<String>,
}

/// Most names that a message lists.
const LISTED: usize = 8;

/// Reads published weights: a PyTorch file (see [`pytorch::read`]) or a safetensors file. Tensors that the model does not
/// have are left out and named in the report.
///
/// # Errors
/// [`Error::Checkpoint`] for what cannot be read, weights of no known kind, and missing or misshaped tensors;
/// [`Error::Invalid`] for a side or length that does not fit the model.
pub fn import(path: &Path, options: &ImportOptions) -> Result<(Checkpoint, Imported)> {
    let (mut file, ignored) = match is_zip(path)? || !is_safetensors(path) {
        true => {
            let file = pytorch::read(path, options.allow_nan)?;
            (Checkpoint { tensors: file.tensors, metadata: file.metadata }, file.ignored)
        }
        false => (Checkpoint::read(path)?, Vec::new()),
    };
    let found = kind::describe(&file.tensors).map_err(|e| Error::checkpoint(path, e.to_string()))?;
    let faults: Vec<String> = [("missing", &found.missing), ("misshaped", &found.misshaped)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what}: {}", list(names)))
        .collect();
    if !faults.is_empty() {
        return Err(Error::checkpoint(path, format!("is no whole {}; {}", found.kind, faults.join("; "))));
    }
    file.tensors.retain(|name, _| found.unexpected.binary_search(name).is_err());

    let mut description = found;
    let mut resized = Vec::new();
    if let Some(side) = options.resolution {
        let patch = description.patch;
        if patch == 0 || side < patch || !side.is_multiple_of(patch) || side > 64 * patch {
            let why = match patch {
                0 => "a probe without its encoder has no position table".into(),
                _ => format!("must be 1 to 64 times the patch side {patch}"),
            };
            return Err(Error::invalid("resolution", side, why));
        }
        let names = ["pos_embed", "decoder_pos_embed"];
        change(&mut file, path, &names, &mut resized, |t| resize::positions(t, side / patch))?;
        description.image = side;
    }
    if let Some(length) = options.caption_length {
        if !matches!(description.kind, Kind::Captioner | Kind::CaptionerBiased) {
            let why = format!("is for captioners, this is of a {}", description.kind);
            return Err(Error::invalid("caption length", length, why));
        }
        if !(2..=LONGEST).contains(&length) {
            return Err(Error::invalid("caption length", length, format!("must be 2 to {LONGEST} tokens")));
        }
        let names = ["text_pos_embed", "text_decoder_pos_embed"];
        change(&mut file, path, &names, &mut resized, |t| resize::captions(t, length))?;
        description.caption_length = Some(length);
    }
    if let Some(model) = &description.model {
        file.metadata.insert("model".into(), model.clone());
    }
    let values = file.tensors.values().map(|t| t.values.len()).sum();
    let tensors = file.tensors.len();
    Ok((file, Imported { description, tensors, values, ignored, resized }))
}

/// Applies `resize` to those of the tables that are there.
fn change(
    file: &mut Checkpoint,
    path: &Path,
    names: &[&str],
    resized: &mut Vec<String>,
    resize: impl Fn(&Tensor) -> Result<Tensor, String>,
) -> Result<()> {
    for name in names {
        let Some(table) = file.tensors.get_mut(*name) else { continue };
        let new = resize(table).map_err(|what| Error::checkpoint(path, format!("{name} {what}")))?;
        if new.shape != table.shape {
            resized.push(format!("{name} {} to {}", table.shape, new.shape));
            *table = new;
        }
    }
    Ok(())
}

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let listed = names[..names.len() - more].join(", ");
    if more > 0 { format!("{listed} and {more} more") } else { listed }
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
}

fn is_zip(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    file.take(2).read_to_end(&mut start).map_err(|e| Error::io(path, e))?;
    Ok(start == b"PK")
}
