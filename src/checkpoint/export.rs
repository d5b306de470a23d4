//! Writes files that `torch.load` reads, also with `weights_only=True`.

use std::io::{Cursor, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::opcode as op;
use super::{Checkpoint, Tensor};
use crate::error::{Error, Result};
use crate::files::write_atomic;

/// Storages start at multiples of this, as PyTorch's do, so that they can be mapped.
const ALIGNMENT: u16 = 64;

/// Writes `{"model": {name: tensor}, "metadata": {name: text}}` as `torch.save` would.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] if a container cannot hold the weights.
pub fn write(file: &Checkpoint, path: &Path) -> Result<()> {
    let bytes = serialise(file).map_err(|e| Error::checkpoint(path, format!("cannot be packed: {e}")))?;
    write_atomic(path, &bytes)
}

fn serialise(file: &Checkpoint) -> std::result::Result<Vec<u8>, zip::result::ZipError> {
    let values: usize = file.tensors.values().map(|t| 4 * t.values.len() + 256).sum();
    let mut zip = ZipWriter::new(Cursor::new(Vec::with_capacity(values)));
    let member = |zip: &mut ZipWriter<_>, name: &str, bytes: &[u8]| {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() as u64 >= u32::MAX as u64)
            .with_alignment(ALIGNMENT);
        zip.start_file(format!("archive/{name}"), options)?;
        zip.write_all(bytes)?;
        Ok::<_, zip::result::ZipError>(())
    };
    member(&mut zip, "data.pkl", &pickle(file))?;
    member(&mut zip, "byteorder", b"little")?;
    for (i, tensor) in file.tensors.values().enumerate() {
        let bytes: Vec<u8> = tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        member(&mut zip, &format!("data/{i}"), &bytes)?;
    }
    member(&mut zip, "version", b"3\n")?;
    Ok(zip.finish()?.into_inner())
}

/// Protocol 2, as PyTorch's own.
fn pickle(file: &Checkpoint) -> Vec<u8> {
    let mut out = vec![op::PROTO, 2, op::EMPTY_DICT, op::MARK];
    text(&mut out, "model");
    out.extend([op::EMPTY_DICT, op::MARK]);
    for (i, (name, value)) in file.tensors.iter().enumerate() {
        text(&mut out, name);
        tensor(&mut out, i, value);
    }
    out.push(op::SETITEMS);
    text(&mut out, "metadata");
    out.extend([op::EMPTY_DICT, op::MARK]);
    for (name, value) in &file.metadata {
        text(&mut out, name);
        text(&mut out, value);
    }
    out.extend([op::SETITEMS, op::SETITEMS, op::STOP]);
    out
}

fn tensor(out: &mut Vec<u8>, key: usize, tensor: &Tensor) {
    let dims = tensor.shape.dims();
    let strides: Vec<usize> = (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect();
    global(out, "torch._utils", "_rebuild_tensor_v2");
    out.extend([op::MARK, op::MARK]);
    text(out, "storage");
    global(out, "torch", "FloatStorage");
    text(out, &key.to_string());
    text(out, "cpu");
    integer(out, tensor.values.len());
    out.extend([op::TUPLE, op::BINPERSID]);
    integer(out, 0);
    for list in [dims, &strides] {
        out.push(op::MARK);
        list.iter().for_each(|&n| integer(out, n));
        out.push(op::TUPLE);
    }
    out.push(op::NEWFALSE);
    global(out, "collections", "OrderedDict");
    out.extend([op::EMPTY_TUPLE, op::REDUCE, op::TUPLE, op::REDUCE]);
}

fn global(out: &mut Vec<u8>, module: &str, name: &str) {
    out.push(op::GLOBAL);
    out.extend(format!("{module}\n{name}\n").bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(op::BINUNICODE);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.bytes());
}

fn integer(out: &mut Vec<u8>, n: usize) {
    match i32::try_from(n) {
        Ok(n) => {
            out.push(op::BININT);
            out.extend(n.to_le_bytes());
        }
        Err(_) => {
            out.extend([op::LONG1, 8]);
            out.extend((n as u64).to_le_bytes());
        }
    }
}
