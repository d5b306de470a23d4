//! WebDataset shards: `.tar` files whose members, grouped by the name up to its first dot, are samples.
//!
//! An index (shard and offset of every sample, 16 bytes each) is built once and kept beside the shards, so that any
//! example can be read at any time: Poisson sampling needs that.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Record, Source, fingerprint, is_image, stamp};
use crate::error::{Error, Result};
use crate::files::write_atomic;

/// First bytes of an index file; the number is the version of the format.
const MAGIC: &[u8; 8] = b"VGINDEX1";

/// Where a sample begins.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
struct Row {
    shard: u32,
    members: u32,
    offset: u64,
}

/// Shards with their index.
#[derive(Debug)]
pub struct WebDataset {
    shards: Vec<PathBuf>,
    rows: Vec<Row>,
    classes: Vec<String>,
    fingerprint: u64,
    warnings: Vec<String>,
}

impl WebDataset {
    /// Opens shards, building or reading the index.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Data`] if no shard holds a sample with an image.
    pub fn open(shards: &[PathBuf]) -> Result<Self> {
        let stamps = shards
            .iter()
            .map(|p| stamp(p).map(|(size, time)| (p.clone(), size, time)))
            .collect::<Result<Vec<_>>>()?;
        let fingerprint = fingerprint(&stamps);
        let cache = cache_path(shards);
        let (rows, warnings) = match read_index(&cache, fingerprint) {
            Some(found) => found,
            None => {
                let built = build(shards)?;
                // A folder that cannot be written costs only the time to index again.
                if let Err(e) = write_index(&cache, fingerprint, &built) {
                    tracing::info!("the index is not kept: {e}");
                }
                built
            }
        };
        if rows.is_empty() {
            let mut what = "no sample with an image in it".to_owned();
            warnings.iter().take(3).for_each(|w| what.push_str(&format!("; {w}")));
            return Err(Error::data(&shards[0], what));
        }
        let classes = read_classes(&shards[0]);
        Ok(WebDataset { shards: shards.to_vec(), rows, classes, fingerprint, warnings })
    }
}

/// Class names from a `classes.json` beside the shards.
fn read_classes(shard: &Path) -> Vec<String> {
    let path = shard.with_file_name("classes.json");
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn cache_path(shards: &[PathBuf]) -> PathBuf {
    let name = shards[0].file_name().unwrap_or_default().to_string_lossy();
    let more = if shards.len() > 1 { format!("+{}", shards.len() - 1) } else { String::new() };
    shards[0].with_file_name(format!(".{name}{more}.index"))
}

fn read_index(path: &Path, fingerprint: u64) -> Option<(Vec<Row>, Vec<String>)> {
    let bytes = std::fs::read(path).ok()?;
    let head = bytes.strip_prefix(MAGIC)?;
    let number = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if number(0)? != fingerprint {
        return None;
    }
    let (rows, text) = (number(8)? as usize, head.get(16..)?);
    let (rows, text) = text.split_at_checked(rows.checked_mul(size_of::<Row>())?)?;
    let rows = rows.chunks_exact(size_of::<Row>()).map(bytemuck::pod_read_unaligned).collect();
    let warnings = std::str::from_utf8(text).ok()?.lines().map(str::to_owned).collect();
    Some((rows, warnings))
}

fn write_index(path: &Path, fingerprint: u64, (rows, warnings): &(Vec<Row>, Vec<String>)) -> Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(fingerprint.to_le_bytes());
    bytes.extend((rows.len() as u64).to_le_bytes());
    bytes.extend_from_slice(bytemuck::cast_slice(rows));
    bytes.extend_from_slice(warnings.join("\n").as_bytes());
    write_atomic(path, &bytes)
}

/// Name of the sample that a member belongs to, and the rest of the member's name.
fn split_name(path: &str) -> (&str, &str) {
    let file = path.rfind('/').map_or(0, |i| i + 1);
    match path[file..].find('.') {
        Some(dot) => (&path[..file + dot], &path[file + dot + 1..]),
        None => (path, ""),
    }
}

fn build(shards: &[PathBuf]) -> Result<(Vec<Row>, Vec<String>)> {
    let (mut rows, mut warnings) = (Vec::new(), Vec::new());
    for (shard, path) in shards.iter().enumerate() {
        if let Err(what) = index_shard(path, shard as u32, &mut rows, &mut warnings)? {
            warnings.push(format!("{}: {what}; the samples before are used", path.display()));
        }
    }
    Ok((rows, warnings))
}

/// Adds the samples of one shard; the inner error says why reading stopped early.
fn index_shard(
    path: &Path,
    shard: u32,
    rows: &mut Vec<Row>,
    warnings: &mut Vec<String>,
) -> Result<Result<(), String>> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?.len();
    let mut archive = tar::Archive::new(BufReader::new(file));
    let entries = match archive.entries_with_seek() {
        Ok(entries) => entries,
        Err(e) => return Ok(Err(format!("is no tar file: {e}"))),
    };
    let mut sample: Option<(String, Row, bool)> = None;
    let mut end = 0;
    let mut finish = |sample: Option<(String, Row, bool)>| {
        if let Some((name, row, image)) = sample {
            if image {
                rows.push(row);
            } else {
                warnings.push(format!("{}: sample {name} has no image", path.display()));
            }
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                // The open sample may lack members: leave it out.
                return Ok(Err(format!("cannot be read past byte {end}: {e}")));
            }
        };
        let start = end;
        let data = entry.raw_file_position();
        // The size is the file's claim: it may be anything.
        if data.checked_add(entry.size()).is_none_or(|end| end > size) {
            return Ok(Err(format!("is cut off inside a member at byte {start}")));
        }
        end = (data + entry.size()).next_multiple_of(512);
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let member = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let (name, ending) = split_name(&member);
        match &mut sample {
            Some((open, row, image)) if open == name => {
                row.members += 1;
                *image |= is_image(ending);
            }
            _ => {
                let row = Row { shard, members: 1, offset: start };
                finish(sample.replace((name.to_owned(), row, is_image(ending))));
            }
        }
    }
    finish(sample);
    Ok(Ok(()))
}

impl Source for WebDataset {
    fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    fn record(&self, index: u64) -> Result<Record> {
        let row = self.rows[index as usize];
        let path = &self.shards[row.shard as usize];
        let fail = |e: std::io::Error| Error::data(path, format!("sample at byte {}: {e}", row.offset));
        let mut file = File::open(path).map_err(|e| Error::io(path, e))?;
        file.seek(SeekFrom::Start(row.offset)).map_err(fail)?;
        let mut archive = tar::Archive::new(BufReader::with_capacity(1 << 14, file));
        let mut record = Record::default();
        let mut left = row.members;
        for entry in archive.entries().map_err(fail)? {
            let mut entry = entry.map_err(fail)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let member = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let (name, ending) = split_name(&member);
            if record.name.is_empty() {
                record.name = format!("{}/{name}", path.display());
            }
            let mut bytes = Vec::new();
            let mut read = |bytes: &mut Vec<u8>| entry.read_to_end(bytes).map(|_| ()).map_err(fail);
            if is_image(ending) {
                read(&mut bytes)?;
                record.image = bytes;
            } else if ending == "cls" {
                read(&mut bytes)?;
                record.class = String::from_utf8_lossy(&bytes).trim().parse().ok();
            } else if ending == "txt" {
                read(&mut bytes)?;
                record.caption = Some(String::from_utf8_lossy(&bytes).trim().to_owned());
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(record)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn describe(&self) -> String {
        let first = self.shards[0].display();
        match self.shards.len() {
            1 => format!("{} images in {first}", self.rows.len()),
            n => format!("{} images in {n} shards from {first}", self.rows.len()),
        }
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
