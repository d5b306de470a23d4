//! WGSL: linking, reflection and checks. The only user of `naga`.
//!
//! The text of a shader is the only source of its interface: bindings, params, workgroup size and workgroup
//! memory are read from it here, and everything above binds by name.

pub mod check;
mod link;
mod reflect;
mod uniform;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use link::{LineOrigin, Linked, link_with, modules, source};

use crate::error::Result;
use crate::record::DType;

/// A storage binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Variable name.
    pub name: String,
    /// `@binding` number in group 0.
    pub binding: u32,
    /// Element type (vectors count as their components).
    pub dtype: DType,
    /// Whether the entry point reads it.
    pub reads: bool,
    /// Whether the entry point writes it.
    pub writes: bool,
}

/// A field of the `params` uniform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Field name.
    pub name: String,
    /// Type: `u32` or `f32`.
    pub dtype: DType,
    /// Byte offset.
    pub offset: u32,
}

/// What one entry point asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Storage bindings the entry point uses, by binding number.
    pub slots: Vec<Slot>,
    /// Fields of the uniform `params` at binding 0; empty if the entry point has none.
    pub params: Vec<Field>,
    /// Size of the uniform in bytes, 0 without one.
    pub params_bytes: u32,
    /// `@workgroup_size`.
    pub workgroup_size: [u32; 3],
    /// Bytes of `var<workgroup>` the entry point uses.
    pub workgroup_bytes: u32,
}

type Spec = Vec<(&'static str, u32)>;

/// A linked module, parsed once per set of `package::spec` constants.
struct Parsed {
    linked: Arc<Linked>,
    module: naga::Module,
    info: naga::valid::ModuleInfo,
}

static PARSED: Mutex<BTreeMap<(String, Spec), Arc<Parsed>>> = Mutex::new(BTreeMap::new());
static INTERFACES: Mutex<BTreeMap<(String, String, Spec), Arc<Interface>>> = Mutex::new(BTreeMap::new());

fn parsed(module: &str, spec: &[(&'static str, u32)]) -> Result<Arc<Parsed>> {
    let key = (module.to_owned(), spec.to_vec());
    let mut cache = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = cache.get(&key) {
        return Ok(found.clone());
    }
    let linked = Arc::new(link_with(module, spec, &source)?);
    dump(module, spec, &linked);
    let (ir, info) = reflect::parse(&linked)?;
    let parsed = Arc::new(Parsed { linked, module: ir, info });
    cache.insert(key, parsed.clone());
    Ok(parsed)
}

/// Writes linked text to the folder named by the environment variable `VEILGRAD_DUMP_WGSL`, for reading what a
/// driver was given. A folder that cannot be written is reported and changes nothing.
fn dump(module: &str, spec: &[(&'static str, u32)], linked: &Linked) {
    let Some(folder) = std::env::var_os("VEILGRAD_DUMP_WGSL").map(std::path::PathBuf::from) else { return };
    let mut name = module.replace('/', ".");
    for (constant, value) in spec {
        name.push_str(&format!("-{constant}{value}"));
    }
    let file = folder.join(name + ".wgsl");
    if let Err(e) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, &linked.text)) {
        tracing::warn!("VEILGRAD_DUMP_WGSL: {}: {e}", file.display());
    }
}

/// The linked text of `module` under these `package::spec` constants. Cached.
///
/// # Errors
/// [`crate::Error::Shader`] with file and line.
pub fn linked(module: &str, spec: &[(&'static str, u32)]) -> Result<Arc<Linked>> {
    Ok(parsed(module, spec)?.linked.clone())
}

/// The interface of `entry` in `module` (e.g. `ops/gelu`) under these `package::spec` constants. Cached.
///
/// # Errors
/// [`crate::Error::Shader`] with file and line.
pub fn interface(module: &str, entry: &str, spec: &[(&'static str, u32)]) -> Result<Arc<Interface>> {
    let key = (module.to_owned(), entry.to_owned(), spec.to_vec());
    if let Some(found) = INTERFACES.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found.clone());
    }
    let parsed = parsed(module, spec)?;
    let interface = Arc::new(reflect::reflect(&parsed.linked, &parsed.module, &parsed.info, entry)?);
    INTERFACES.lock().unwrap_or_else(PoisonError::into_inner).insert(key, interface.clone());
    Ok(interface)
}
