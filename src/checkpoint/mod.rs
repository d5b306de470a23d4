//! Checkpoints: safetensors files under the published tensor names, written atomically.

pub mod export;
pub mod import;
pub mod kind;
mod opcode;
mod pickle;
pub mod pytorch;
pub mod resize;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::{Error, Result};
use crate::files::write_atomic;
use crate::shape::Shape;

/// A named tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Extents.
    pub shape: Shape,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// Tensors and text metadata of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Metadata: what the tensors are of (`model`, `recipe`), never anything secret.
    pub metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Reads a safetensors file of f32, f16, bf16 or f64 tensors.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a broken header, an unknown element type, or a value that is not
    /// finite, naming the tensor.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let fail = |what: String| Error::checkpoint(path, what);
        check_names(&bytes).map_err(fail)?;
        let file =
            SafeTensors::deserialize(&bytes).map_err(|e| fail(format!("is no safetensors file: {e}")))?;
        let (_, header) =
            SafeTensors::read_metadata(&bytes).map_err(|e| fail(format!("is no safetensors file: {e}")))?;
        let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            let values =
                decode(&view).ok_or_else(|| fail(format!("{name} holds {:?}, not floats", view.dtype())))?;
            if let Some(what) = not_finite(&name, &values) {
                return Err(fail(what));
            }
            tensors.insert(name, Tensor { shape: Shape::new(view.shape()), values });
        }
        Ok(Checkpoint { tensors, metadata })
    }

    /// Writes the file beside its place and moves it there, so that a crash leaves the old one.
    ///
    /// # Errors
    /// [`Error::Io`] (a full disk, a missing folder).
    pub fn write(&self, path: &Path) -> Result<()> {
        let views: Vec<(&str, TensorView<'_>)> = self
            .tensors
            .iter()
            .map(|(name, t)| {
                let bytes = bytemuck::cast_slice(&t.values);
                let view = TensorView::new(Dtype::F32, t.shape.dims().to_vec(), bytes);
                (name.as_str(), view.expect("shape and values agree"))
            })
            .collect();
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone().into_iter().collect());
        let bytes = safetensors::serialize(views, metadata)
            .map_err(|e| Error::checkpoint(path, format!("cannot be serialised: {e}")))?;
        write_atomic(path, &sorted_header(bytes))
    }

    /// The tensor of this name and shape.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is missing or has another shape.
    pub fn get(&self, path: &Path, name: &str, shape: &Shape) -> Result<&[f32]> {
        let tensor =
            self.tensors.get(name).ok_or_else(|| Error::checkpoint(path, format!("has no tensor {name}")))?;
        if tensor.shape != *shape {
            let what = format!("{name} is {}, the model wants {shape}", tensor.shape);
            return Err(Error::checkpoint(path, what));
        }
        Ok(&tensor.values)
    }
}

/// The file with the keys of its header sorted: the crate keeps metadata in a hash map, whose order is another in every
/// process, and equal runs must give equal bytes.
fn sorted_header(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(end) = bytes.first_chunk().map(|n| 8 + u64::from_le_bytes(*n) as usize) else { return bytes };
    let Some(Ok(header)) =
        bytes.get(8..end).map(serde_json::from_slice::<BTreeMap<String, serde_json::Value>>)
    else {
        return bytes;
    };
    let sort = |value: serde_json::Value| match value {
        serde_json::Value::Object(fields) => {
            serde_json::json!(fields.into_iter().collect::<BTreeMap<_, _>>())
        }
        other => other,
    };
    let sorted: BTreeMap<String, serde_json::Value> = header.into_iter().map(|(k, v)| (k, sort(v))).collect();
    let mut text = serde_json::to_vec(&sorted).expect("was parsed before");
    if text.len() <= end - 8 {
        // The crate pads with spaces, which JSON allows.
        text.resize(end - 8, b' ');
        bytes[8..end].copy_from_slice(&text);
    }
    bytes
}

/// Refuses names that occur twice, of which other readers take one or the other.
fn check_names(bytes: &[u8]) -> Result<(), String> {
    struct Once;
    impl<'de> serde::de::Visitor<'de> for Once {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a header of tensors")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut seen = BTreeSet::new();
            while let Some(name) = map.next_key::<String>()? {
                map.next_value::<serde::de::IgnoredAny>()?;
                if seen.contains(&name) {
                    return Err(serde::de::Error::custom(format!("{name} is there twice")));
                }
                seen.insert(name);
            }
            Ok(())
        }
    }
    let fail = |what: String| format!("is no safetensors file: {what}");
    let len = bytes.first_chunk().map(|n| u64::from_le_bytes(*n));
    let end = len.and_then(|n| usize::try_from(n).ok()?.checked_add(8)).filter(|&end| end <= bytes.len());
    let end = end.ok_or_else(|| fail("its header is cut off".into()))?;
    let mut header = serde_json::Deserializer::from_slice(&bytes[8..end]);
    serde::Deserializer::deserialize_map(&mut header, Once).map_err(|e| fail(e.to_string()))
}

/// What to say of a tensor with a value that is not finite.
fn not_finite(name: &str, values: &[f32]) -> Option<String> {
    let i = values.iter().position(|x| !x.is_finite())?;
    Some(format!("{name}[{i}] is {}: the weights are damaged", values[i]))
}

fn decode(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    let halves = || data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    Some(match view.dtype() {
        Dtype::F32 => {
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
        }
        Dtype::F64 => {
            data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes")) as f32).collect()
        }
        Dtype::BF16 => halves().map(|b| half::bf16::from_bits(b).to_f32()).collect(),
        Dtype::F16 => halves().map(|b| half::f16::from_bits(b).to_f32()).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let mut checkpoint = Checkpoint::default();
        checkpoint
            .tensors
            .insert("w".into(), Tensor { shape: [2, 3].into(), values: vec![1.0, -2.5, 0.0, 4.0, 5.0, 6.0] });
        for i in 0..20 {
            checkpoint.metadata.insert(format!("key {i}"), "micro32".into());
        }
        checkpoint.write(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        checkpoint.clone().write(&path).unwrap();
        assert!(first == std::fs::read(&path).unwrap(), "the same bytes twice");
        let back = Checkpoint::read(&path).unwrap();
        assert_eq!(back, checkpoint);
        assert!(back.get(&path, "w", &[3, 2].into()).unwrap_err().to_string().contains("(2, 3)"));
        assert!(back.get(&path, "v", &[3, 2].into()).is_err());
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let mut checkpoint = Checkpoint::default();
        checkpoint
            .tensors
            .insert("w".into(), Tensor { shape: [4].into(), values: vec![1.0, 2.0, f32::NAN, 4.0] });
        checkpoint.write(&path).unwrap();
        assert!(Checkpoint::read(&path).unwrap_err().to_string().contains("w[2]"));
        let whole = std::fs::read(&path).unwrap();
        for broken in [&whole[..whole.len() - 3], &whole[..5], &[][..], &[0xff; 64][..]] {
            std::fs::write(&path, broken).unwrap();
            assert!(matches!(Checkpoint::read(&path), Err(Error::Checkpoint { .. })));
        }
        assert!(matches!(Checkpoint::read(&folder.path().join("none")), Err(Error::Io { .. })));
    }
}
