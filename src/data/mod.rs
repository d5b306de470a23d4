//! Data: random-access sources, decoding, augmentation, and loading ahead of the device.
//!
//! A source neither shuffles nor batches: which examples form a batch is decided elsewhere, by index.

pub mod augment;
pub mod decode;
mod files;
mod folder;
pub mod loader;
pub mod synthetic;
pub mod tokenizer;
mod webdataset;
pub mod words;

use std::path::{Path, PathBuf};

pub use files::Files;
pub use folder::Folder;
pub use webdataset::WebDataset;

use crate::error::{Error, Result};

/// One example as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Where it is, for reports: a file, or shard and member.
    pub name: String,
    /// The image file's bytes.
    pub image: Vec<u8>,
    /// Index into [`Source::classes`].
    pub class: Option<u32>,
    /// Caption.
    pub caption: Option<String>,
}

/// Examples by index.
pub trait Source: Send + Sync {
    /// Number of examples, N. Examples whose image cannot be decoded count.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads an example.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] naming the file or shard and what is wrong with it.
    fn record(&self, index: u64) -> Result<Record>;

    /// Reads an example's caption alone; nothing if it has none.
    ///
    /// # Errors
    /// As [`Source::record`].
    fn caption(&self, index: u64) -> Result<Option<String>> {
        Ok(self.record(index)?.caption)
    }

    /// Names of the classes; empty if the source has none.
    fn classes(&self) -> &[String];

    /// What it is, for people.
    fn describe(&self) -> String;

    /// Changes when files are added, removed or changed: names, sizes and times of all files.
    fn fingerprint(&self) -> u64;

    /// What was left out while indexing (truncated shards, samples without image), a line each.
    fn warnings(&self) -> &[String];
}

/// Endings of the image files that are read.
const IMAGES: [&str; 5] = ["jpg", "jpeg", "png", "webp", "gif"];

/// Whether a file ending is an image's.
fn is_image(ending: &str) -> bool {
    IMAGES.iter().any(|e| ending.eq_ignore_ascii_case(e))
}

/// Opens what the path names: `.tar` shards (one, a folder of them, or a brace pattern `x-{000..041}.tar`), or a folder
/// of images, whose sub-folders are classes.
///
/// # Errors
/// [`Error::Io`]; [`Error::Data`] if there is neither, saying what was looked for.
pub fn open(path: &Path) -> Result<Box<dyn Source>> {
    let shards = shards(path)?;
    if !shards.is_empty() {
        return Ok(Box::new(WebDataset::open(&shards)?));
    }
    Ok(Box::new(Folder::open(path)?))
}

/// The `.tar` files that a path names, sorted.
fn shards(path: &Path) -> Result<Vec<PathBuf>> {
    let text = path.to_string_lossy();
    if let Some(expanded) = expand_braces(&text)? {
        return Ok(expanded.into_iter().map(PathBuf::from).collect());
    }
    if path.is_dir() {
        let mut found: Vec<PathBuf> = std::fs::read_dir(path)
            .map_err(|e| Error::io(path, e))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("tar")))
            .collect();
        found.sort();
        return Ok(found);
    }
    if !path.exists() {
        let missing = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file or folder");
        return Err(Error::io(path, missing));
    }
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("tar")) {
        return Ok(vec![path.to_path_buf()]);
    }
    Err(Error::data(path, "is neither a .tar shard, nor a folder of shards or images"))
}

/// `a-{000..003}.tar` as its four names; nothing without braces.
fn expand_braces(text: &str) -> Result<Option<Vec<String>>> {
    let (Some(open), Some(close)) = (text.find('{'), text.find('}')) else { return Ok(None) };
    let fail = || Error::data(text, "write a brace pattern as name-{000..041}.tar");
    let (first, last) = text.get(open + 1..close).and_then(|r| r.split_once("..")).ok_or_else(fail)?;
    let (low, high): (u64, u64) = (first.parse().map_err(|_| fail())?, last.parse().map_err(|_| fail())?);
    if high < low || high - low > 10_000_000 {
        return Err(fail());
    }
    let width = first.len();
    Ok(Some((low..=high).map(|i| format!("{}{i:0width$}{}", &text[..open], &text[close + 1..])).collect()))
}

/// FNV-1a over file names, sizes and times.
fn fingerprint(files: &[(PathBuf, u64, u64)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut feed = |bytes: &[u8]| {
        for b in bytes {
            hash = (hash ^ *b as u64).wrapping_mul(0x100_0000_01b3);
        }
    };
    for (path, size, time) in files {
        feed(path.file_name().unwrap_or_default().as_encoded_bytes());
        feed(&size.to_le_bytes());
        feed(&time.to_le_bytes());
    }
    hash
}

/// Size and modification time (seconds) of a file.
fn stamp(path: &Path) -> Result<(u64, u64)> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    let time = meta
        .modified()
        .ok()
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs());
    Ok((meta.len(), time))
}
