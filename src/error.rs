//! The one error type of the crate: plain data, no type of any higher floor.
//!
//! Every message names what was wrong, where, and what would put it right. Panics are kept for faults
//! of our own and are listed under `# Panics` where they can happen.

use std::path::{Path, PathBuf};

/// Result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, by topic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not fit an op; names the op and every shape involved.
    #[error("{op}: {what}")]
    Shape {
        /// The op, with the node's label where one is known.
        op: String,
        /// Both shapes and the rule they break.
        what: String,
    },

    /// An op that mixes examples was put into a private graph.
    #[error("{op} cannot be trained privately: {why}")]
    Mixes {
        /// The op that mixes.
        op: String,
        /// Why one example's gradient would depend on another, and what to use instead.
        why: String,
    },

    /// A value out of its range: a flag, a recipe field, an argument of the API.
    #[error("{field} = {value}: {why}")]
    Invalid {
        /// Name of the field or argument.
        field: String,
        /// The refused value.
        value: String,
        /// The rule it breaks, and the fix.
        why: String,
    },

    /// A recipe or configuration file that does not parse or names an unknown key.
    #[error("{}: {what}", file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// Field, fault and nearest known key.
        what: String,
    },

    /// A fault in WGSL, mapped back to the file it came from.
    #[error("{file}:{line}: {message}")]
    Shader {
        /// Shader module, e.g. `ops/gelu.wgsl`.
        file: String,
        /// Line in that file, from 1.
        line: usize,
        /// What naga or a house rule says.
        message: String,
    },

    /// A dispatch whose bindings or params do not fit the kernel's WGSL interface.
    #[error("kernel {kernel}: {what}")]
    Kernel {
        /// `module.entry`.
        kernel: String,
        /// The missing, extra or mistyped name, or the overlapping slices.
        what: String,
    },

    /// A kernel's result differs from its twin (see `Verify`).
    #[error("kernel {kernel} differs from its twin: {what}")]
    Differs {
        /// `module.entry` and label of the first dispatch that differs.
        kernel: String,
        /// Binding, index and both values.
        what: String,
    },

    /// No adapter fits what was asked for.
    #[error("no adapter: {0}")]
    NoAdapter(String),

    /// More than the device, or the user's budget, allows.
    #[error("{what} needs {needed}, allowed is {allowed}")]
    Limit {
        /// What was asked for, with the limit's name.
        what: String,
        /// Needed amount, bytes unless `what` says otherwise.
        needed: u64,
        /// Allowed amount, same unit.
        allowed: u64,
    },

    /// The device ran out of memory.
    #[error("out of memory on {device}: {what}; try a smaller physical batch")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was being allocated.
        what: String,
    },

    /// The device was lost. What was checkpointed before is intact: resume from it.
    #[error("device lost: {0}; resume from the last checkpoint")]
    DeviceLost(String),

    /// The driver or wgpu refused something it should not have been asked.
    #[error("device error: {0}")]
    Device(String),

    /// Data that cannot be read as what it claims to be.
    #[error("{}: {what}", path.display())]
    Data {
        /// File (or shard and member, joined by `/`).
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },

    /// A checkpoint that does not hold what it must.
    #[error("checkpoint {}: {what}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Missing, unexpected or misshaped tensors, or a broken header.
        what: String,
    },

    /// An accountant that does not know an event refuses it by name.
    #[error("accountant {accountant} does not support {event}: {why}")]
    Unsupported {
        /// The accountant.
        accountant: &'static str,
        /// The refused event.
        event: String,
        /// Why, and what does support it.
        why: String,
    },

    /// Reading or writing a file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// Stopped on request, after saving.
    #[error("interrupted: {0}")]
    Interrupted(String),
}

impl Error {
    /// An [`Error::Shape`].
    pub fn shape(op: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Shape { op: op.into(), what: what.into() }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(field: impl Into<String>, value: impl ToString, why: impl Into<String>) -> Self {
        Error::Invalid { field: field.into(), value: value.to_string(), why: why.into() }
    }

    /// An [`Error::Kernel`].
    pub fn kernel(kernel: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Kernel { kernel: kernel.into(), what: what.into() }
    }

    /// An [`Error::Data`].
    pub fn data(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Data { path: path.as_ref().to_path_buf(), what: what.into() }
    }

    /// An [`Error::Io`]; use as `.map_err(|e| Error::io(path, e))`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().to_path_buf(), source }
    }

    /// An [`Error::Checkpoint`].
    pub fn checkpoint(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Checkpoint { path: path.as_ref().to_path_buf(), what: what.into() }
    }
}
