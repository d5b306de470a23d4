//! PyTorch's checkpoint files (`.pth`, `.pt`): a ZIP container with a pickle and one member per storage.
//!
//! Reading runs no code, see `pickle.rs`; and a file of n bytes never makes more than a few n bytes of tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use memmap2::Mmap;
use zip::{CompressionMethod, ZipArchive};

use super::pickle;
use super::value::{Element, Id, Node, Pickle, Storage, TensorRef};
use super::{Tensor, not_finite};
use crate::error::{Error, Result};
use crate::shape::Shape;

/// First bytes of a file of PyTorch before 1.6: a pickle of its magic number.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// Longest pickle: names and shapes of a hundred thousand tensors stay far below.
const LONGEST_PICKLE: u64 = 256 << 20;

/// Values (4 bytes each) that a file may make per byte, beyond [`FREE`]: views may share bytes, but not without end.
const GROWTH: u64 = 2;

/// Values that any file may make.
const FREE: u64 = 16 << 20;

/// Entries that hold the weights of a training checkpoint, in this order.
const NESTED: [&str; 2] = ["model", "state_dict"];

/// Entry of texts beside the weights.
const METADATA: &str = "metadata";

/// Prefixes that wrappers of models put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_module."];

/// What a file of PyTorch holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PyTorchFile {
    /// Tensors by name, as f32.
    pub tensors: BTreeMap<String, Tensor>,
    /// Texts of a dict `metadata` beside the weights, as [`super::export`] writes it.
    pub metadata: BTreeMap<String, String>,
    /// Entries beside the weights, not looked into (`optimizer`, `epoch`).
    pub ignored: Vec<String>,
}

/// Reads a file that `torch.save` wrote: a state dict, or a dict with one under `model` or `state_dict`.
///
/// Tensors of 16, 32 and 64-bit floats, integers and truth values become f32. Wrappers' prefixes (`module.`) are dropped.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for anything but tensors, dicts, lists, numbers and strings (by its name), a
/// damaged or legacy file, names that repeat, views beyond their storage, and values that are not finite unless
/// `allow_nan`.
pub fn read(path: &Path, allow_nan: bool) -> Result<PyTorchFile> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    if file.metadata().map_err(|e| Error::io(path, e))?.len() == 0 {
        return Err(Error::checkpoint(path, "is empty"));
    }
    // SAFETY: the map is read only; as with any reader of a file, its content is not trusted.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
    parse(&bytes, allow_nan).map_err(|what| Error::checkpoint(path, what))
}

/// As [`read`], from memory.
///
/// # Errors
/// What is wrong with the bytes.
pub fn parse(bytes: &[u8], allow_nan: bool) -> Result<PyTorchFile, String> {
    let mut container = Container::open(bytes)?;
    let pickle = container.member("data.pkl", LONGEST_PICKLE)?;
    let pickle = pickle::parse(&pickle)?;
    let (entries, mut ignored) = weights(&pickle)?;
    let metadata = metadata(&pickle);
    if !metadata.is_empty() {
        ignored.retain(|name| name != METADATA);
    }
    let views = views(&pickle, entries, FREE + GROWTH * bytes.len() as u64)?;

    let mut tensors = BTreeMap::new();
    let mut loaded: Option<(&str, Vec<u8>)> = None;
    for (name, storage, view) in views {
        let in_name = |what: String| format!("{name}: {what}");
        let width = width(storage.element) as u64;
        let len = storage.len.checked_mul(width).filter(|&n| n <= bytes.len() as u64);
        let len =
            len.ok_or_else(|| in_name(format!("its storage of {} elements is cut off", storage.len)))?;
        if loaded.as_ref().is_none_or(|(key, _)| *key != storage.key) {
            let data =
                container.member(&format!("data/{}", storage.key), bytes.len() as u64).map_err(in_name)?;
            loaded = Some((&storage.key, data));
        }
        let data = &loaded.as_ref().expect("loaded above").1;
        if data.len() as u64 != len {
            return Err(in_name(format!("its storage has {} bytes, {len} are declared", data.len())));
        }
        let values = gather(view, |i| value(storage.element, data, i));
        if let Some(what) = not_finite(name, &values).filter(|_| !allow_nan) {
            return Err(what);
        }
        let shape = Shape::new(view.size.iter().map(|&n| n as usize).collect::<Vec<_>>());
        tensors.insert(name.to_owned(), Tensor { shape, values });
    }
    Ok(PyTorchFile { tensors: unwrapped(tensors), metadata, ignored })
}

struct Container<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// Folder that all members are in, with its slash.
    folder: String,
}

impl<'a> Container<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.starts_with(LEGACY) {
            return Err(
                "is in the format of PyTorch before 1.6: load it and torch.save it with a newer one".into()
            );
        }
        if !bytes.starts_with(b"PK") {
            let what = if bytes.starts_with(&[0x80]) { "a bare pickle" } else { "no ZIP container" };
            return Err(format!("is {what}: a file that torch.save wrote starts with PK"));
        }
        let zip =
            ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("is no whole ZIP container: {e}"))?;
        if zip.has_duplicate_names() {
            return Err("has two members of one name".into());
        }
        let names = zip.file_names_raw().filter_map(|name| name.strip_suffix(b"data.pkl"));
        let folders: Vec<&[u8]> = names.take(2).collect();
        let folder = match folders.as_slice() {
            [folder] if folder.is_empty() || folder.ends_with(b"/") => *folder,
            [_, _] => return Err("has more than one data.pkl".into()),
            _ => return Err("has no data.pkl: it is a ZIP container, but not PyTorch's".into()),
        };
        let folder =
            std::str::from_utf8(folder).map_err(|_| "has a folder whose name is not UTF-8")?.to_owned();
        let mut container = Container { zip, folder };
        if container.zip.has_overlapping_files().map_err(|e| e.to_string())? {
            return Err("has members that share bytes".into());
        }
        if container.has("constants.pkl") {
            return Err("is a TorchScript program: save its state_dict() instead".into());
        }
        if container.has("byteorder") && container.member("byteorder", 16)? != b"little" {
            return Err("was written on a big-endian machine".into());
        }
        Ok(container)
    }

    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name_raw(format!("{}{name}", self.folder).as_bytes()).is_some()
    }

    fn member(&mut self, name: &str, longest: u64) -> Result<Vec<u8>, String> {
        let full = format!("{}{name}", self.folder);
        let index =
            self.zip.index_for_name_raw(full.as_bytes()).ok_or_else(|| format!("has no member {name:?}"))?;
        let damaged = |e: &dyn std::fmt::Display| format!("member {name:?} cannot be read: {e}");
        let member = self.zip.by_index(index).map_err(|e| damaged(&e))?;
        if member.compression() != CompressionMethod::Stored {
            return Err(format!("member {name:?} is compressed, which torch.save never does"));
        }
        if member.size() > longest {
            return Err(format!("member {name:?} claims {} bytes, more than there can be", member.size()));
        }
        let mut out = Vec::new();
        member.take(longest).read_to_end(&mut out).map_err(|e| damaged(&e))?;
        Ok(out)
    }
}

/// Name and row of a value.
type Entry<'a> = (&'a str, Id);

/// Names and tensors of the weights, and the names of what lies beside them.
fn weights(pickle: &Pickle) -> Result<(Vec<Entry<'_>>, Vec<String>), String> {
    let dict = |id| match pickle.node(id) {
        Node::Dict(entries) => Some(entries),
        _ => None,
    };
    let top = dict(pickle.root()).ok_or("holds no dict of tensors")?;
    let key = |id: Id| pickle.text(id).ok_or_else(|| "has an entry whose key is no string".to_owned());
    for nested in NESTED {
        let mut found = top.iter().filter(|(k, _)| pickle.text(*k) == Some(nested));
        let Some(inner) = found.next().and_then(|(_, v)| dict(*v)) else { continue };
        if found.next().is_some() {
            return Err(format!("has two entries {nested:?}"));
        }
        let ignored = top.iter().filter_map(|(k, _)| pickle.text(*k)).filter(|k| *k != nested);
        let inner = inner.iter().map(|(k, v)| Ok((key(*k)?, *v))).collect::<Result<_, String>>()?;
        return Ok((inner, ignored.map(str::to_owned).collect()));
    }
    // A plain state dict: what is no tensor in it is not a weight.
    let mut tensors = Vec::new();
    let mut ignored = Vec::new();
    for (k, v) in top {
        match pickle.node(*v) {
            Node::Tensor(_) => tensors.push((key(*k)?, *v)),
            _ => ignored.extend(pickle.text(*k).map(str::to_owned)),
        }
    }
    match tensors.is_empty() {
        true => Err(format!("holds no tensors, nor a dict of them under {}", NESTED.join(" or "))),
        false => Ok((tensors, ignored)),
    }
}

/// The texts of a dict `metadata`; nothing if there is anything else in it.
fn metadata(pickle: &Pickle) -> BTreeMap<String, String> {
    let Node::Dict(top) = pickle.node(pickle.root()) else { return BTreeMap::new() };
    let entry = top.iter().find(|(k, _)| pickle.text(*k) == Some(METADATA));
    let Some(Node::Dict(entries)) = entry.map(|(_, v)| pickle.node(*v)) else { return BTreeMap::new() };
    let text = |id: Id| pickle.text(id).map(str::to_owned);
    entries.iter().map(|(k, v)| Some((text(*k)?, text(*v)?))).collect::<Option<_>>().unwrap_or_default()
}

type View<'a> = (&'a str, &'a Storage, &'a TensorRef);

/// Checks every tensor against its storage; sorted by storage, so that each is read once.
fn views<'a>(pickle: &'a Pickle, entries: Vec<Entry<'a>>, most: u64) -> Result<Vec<View<'a>>, String> {
    let mut views = Vec::new();
    let mut seen = BTreeMap::new();
    let mut total = 0u64;
    for (name, id) in entries {
        let Node::Tensor(view) = pickle.node(id) else {
            return Err(format!("{name} is no tensor"));
        };
        if seen.insert(name, ()).is_some() {
            return Err(format!("{name} is there twice"));
        }
        let Node::Storage(storage) = pickle.node(view.storage) else {
            return Err(format!("{name} has no storage"));
        };
        let product = |n: u64, m: &u64| n.checked_mul(*m);
        let len = view.size.iter().try_fold(1, product);
        total = len.and_then(|n| total.checked_add(n)).filter(|&n| n <= most).ok_or_else(|| {
            format!("{name} of extents {:?} makes more values than a file of this length may", view.size)
        })?;
        let reach = |at: u64, (n, step): (&u64, &u64)| (n - 1).checked_mul(*step)?.checked_add(at);
        let end = match len {
            Some(0) => Some(0),
            _ => view
                .size
                .iter()
                .zip(&view.stride)
                .try_fold(view.offset, reach)
                .and_then(|at| at.checked_add(1)),
        };
        if end.is_none_or(|end| end > storage.len) {
            return Err(format!("{name} reaches beyond its storage of {} elements", storage.len));
        }
        views.push((name, storage, view));
    }
    views.sort_by(|a, b| (&a.1.key, a.0).cmp(&(&b.1.key, b.0)));
    Ok(views)
}

/// Values of a view in row-major order.
fn gather(view: &TensorRef, value: impl Fn(usize) -> f32) -> Vec<f32> {
    let len: u64 = view.size.iter().product();
    let mut out = Vec::with_capacity(len as usize);
    let mut index = vec![0u64; view.size.len()];
    let mut at = view.offset;
    for _ in 0..len {
        out.push(value(at as usize));
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            at += view.stride[axis];
            if index[axis] < view.size[axis] {
                break;
            }
            at -= view.stride[axis] * view.size[axis];
            index[axis] = 0;
        }
    }
    out
}

/// Bytes of an element.
fn width(element: Element) -> usize {
    match element {
        Element::F64 | Element::I64 => 8,
        Element::F32 | Element::I32 => 4,
        Element::F16 | Element::Bf16 | Element::I16 => 2,
        Element::I8 | Element::U8 | Element::Bool => 1,
    }
}

/// Element `i` of little-endian bytes.
fn value(element: Element, data: &[u8], i: usize) -> f32 {
    fn at<const N: usize>(data: &[u8], i: usize) -> [u8; N] {
        data[i * N..][..N].try_into().expect("N bytes")
    }
    match element {
        Element::F64 => f64::from_le_bytes(at(data, i)) as f32,
        Element::F32 => f32::from_le_bytes(at(data, i)),
        Element::F16 => half::f16::from_le_bytes(at(data, i)).to_f32(),
        Element::Bf16 => half::bf16::from_le_bytes(at(data, i)).to_f32(),
        Element::I64 => i64::from_le_bytes(at(data, i)) as f32,
        Element::I32 => i32::from_le_bytes(at(data, i)) as f32,
        Element::I16 => i16::from_le_bytes(at(data, i)).into(),
        Element::I8 => (data[i] as i8).into(),
        Element::U8 => data[i].into(),
        Element::Bool => (data[i] != 0).into(),
    }
}

/// Without the prefixes that all names share.
fn unwrapped(mut tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    for prefix in WRAPPERS {
        if !tensors.is_empty() && tensors.keys().all(|name| name.starts_with(prefix)) {
            tensors = tensors.into_iter().map(|(name, t)| (name[prefix.len()..].to_owned(), t)).collect();
        }
    }
    tensors
}
