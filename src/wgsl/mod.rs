//! WGSL: linking, reflection and checks. The only user of `naga`.
//!
//! The text of a shader is the only source of its interface: bindings, params, workgroup size and workgroup
//! memory are read from it here, and everything above binds by name.

use std::sync::Arc;

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

/// The interface of `entry` in `module` (e.g. `ops/gelu`) under these `package::spec` constants. Cached.
///
/// # Errors
/// [`crate::Error::Shader`] with file and line.
pub fn interface(_module: &str, _entry: &str, _spec: &[(&'static str, u32)]) -> Result<Arc<Interface>> {
    todo!("lands with the linker")
}
