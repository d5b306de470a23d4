//! A recording: what is to be computed, as plain data, before any device is touched.
//!
//! Ops append [`Command`]s made of copyable handles; an [`Engine`] opens a [`Session`] that owns the memory
//! of a [`Layout`] and replays prepared recordings. A recording can be printed, counted and compared.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::kernel::{Kernel, Value};
use crate::wgsl;

/// Slices start at multiples of this many elements (256 bytes), so that every device can bind them.
pub const ALIGN: usize = 64;

/// Element type of a buffer. Four bytes each on devices; the f64 oracle widens `F32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Floats.
    F32,
    /// Indices, ids, key words, counters.
    U32,
}

/// A range of a buffer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Index of the buffer in its [`Layout`].
    pub buffer: usize,
    /// First element; a multiple of [`ALIGN`] when bound to a kernel.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
    /// Element type.
    pub dtype: DType,
}

impl Slice {
    /// A part of this slice.
    ///
    /// # Panics
    /// If the part ends past this slice.
    pub fn part(self, offset: usize, len: usize) -> Slice {
        assert!(offset + len <= self.len, "part {offset}+{len} of a slice of {}", self.len);
        Slice { offset: self.offset + offset, len, ..self }
    }

    /// Whether both share an element.
    pub fn overlaps(self, other: Slice) -> bool {
        self.buffer == other.buffer
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// A buffer of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferInfo {
    /// Label, shown by debuggers and in errors.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

/// The buffers of a session, decided on the host before anything is allocated.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    buffers: Vec<BufferInfo>,
}

impl Layout {
    /// Adds a buffer and returns the slice that covers it.
    pub fn add(&mut self, name: impl Into<String>, dtype: DType, len: usize) -> Slice {
        self.buffers.push(BufferInfo { name: name.into(), dtype, len });
        Slice { buffer: self.buffers.len() - 1, offset: 0, len, dtype }
    }

    /// The buffers, in the order of [`Slice::buffer`].
    pub fn buffers(&self) -> &[BufferInfo] {
        &self.buffers
    }

    /// Device bytes of all buffers, each rounded up to 256.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|b| (b.len.max(1).next_multiple_of(ALIGN) * 4) as u64).sum()
    }
}

/// A kernel with its arguments.
#[derive(Clone)]
pub struct Dispatch {
    /// What runs.
    pub kernel: &'static Kernel,
    /// Which node of the graph this is for, e.g. `blocks.0.mlp.fc1`. May be empty.
    pub label: String,
    /// Values of `package::spec` constants (they shape local arrays).
    pub spec: Vec<(&'static str, u32)>,
    /// Storage bindings by their WGSL name.
    pub bindings: Vec<(&'static str, Slice)>,
    /// Fields of the `params` uniform by their WGSL name.
    pub params: BTreeMap<&'static str, Value>,
    /// Workgroups along x, y, z.
    pub groups: [u32; 3],
}

/// One step of a recording.
#[derive(Clone)]
pub enum Command {
    /// Run a kernel.
    Dispatch(Dispatch),
    /// Copy elements between non-overlapping slices of equal length and type.
    Copy {
        /// Source.
        from: Slice,
        /// Destination.
        to: Slice,
    },
    /// Set every element to zero.
    Clear(Slice),
}

/// A list of commands, in order.
#[derive(Clone, Default)]
pub struct Recording {
    commands: Vec<Command>,
    scope: String,
}

impl Recording {
    /// An empty recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// The commands, in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Labels the dispatches that follow (a graph node's name).
    pub fn scope(&mut self, label: impl Into<String>) {
        self.scope = label.into();
    }

    /// Starts a dispatch; finish it with [`Builder::groups`] or [`Builder::threads`].
    pub fn dispatch(&mut self, kernel: &'static Kernel) -> Builder<'_> {
        let dispatch = Dispatch {
            kernel,
            label: self.scope.clone(),
            spec: Vec::new(),
            bindings: Vec::new(),
            params: BTreeMap::new(),
            groups: [1, 1, 1],
        };
        Builder { recording: self, dispatch }
    }

    /// Appends a copy.
    ///
    /// # Errors
    /// [`Error::Kernel`] if lengths or types differ, or the slices overlap.
    pub fn copy(&mut self, from: Slice, to: Slice) -> Result<()> {
        if from.len != to.len || from.dtype != to.dtype || from.overlaps(to) {
            return Err(Error::kernel("copy", format!("{from:?} does not fit {to:?}")));
        }
        if from.len > 0 {
            self.commands.push(Command::Copy { from, to });
        }
        Ok(())
    }

    /// Appends a clear.
    pub fn clear(&mut self, slice: Slice) {
        if slice.len > 0 {
            self.commands.push(Command::Clear(slice));
        }
    }

    /// Appends all of another recording.
    pub fn append(&mut self, other: &Recording) {
        self.commands.extend(other.commands.iter().cloned());
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for command in &self.commands {
            match command {
                Command::Dispatch(d) => {
                    write!(f, "{} {} {:?} [", d.kernel, d.label, d.groups)?;
                    for (name, s) in &d.bindings {
                        write!(f, " {name}=#{}+{}:{}", s.buffer, s.offset, s.len)?;
                    }
                    writeln!(f, " ] {:?}", d.params)?;
                }
                Command::Copy { from, to } => writeln!(f, "copy {from:?} -> {to:?}")?,
                Command::Clear(slice) => writeln!(f, "clear {slice:?}")?,
            }
        }
        Ok(())
    }
}

/// A dispatch under construction.
pub struct Builder<'a> {
    recording: &'a mut Recording,
    dispatch: Dispatch,
}

impl Builder<'_> {
    /// Binds a slice to the storage variable of this name.
    pub fn bind(mut self, name: &'static str, slice: Slice) -> Self {
        self.dispatch.bindings.push((name, slice));
        self
    }

    /// Sets a field of the `params` uniform.
    pub fn param(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.dispatch.params.insert(name, value.into());
        self
    }

    /// Sets a count or index field of the `params` uniform.
    ///
    /// # Panics
    /// If it does not fit a `u32`: the planner refuses tensors of that size before.
    pub fn n(self, name: &'static str, value: usize) -> Self {
        let value = u32::try_from(value).unwrap_or_else(|_| panic!("param {name} = {value} over 2^32"));
        self.param(name, value)
    }

    /// Sets a constant of `package::spec`.
    pub fn spec(mut self, name: &'static str, value: u32) -> Self {
        self.dispatch.spec.push((name, value));
        self
    }

    /// Finishes with `n` workgroups, folded into two dimensions; WGSL rebuilds the index with
    /// `index_group` of `lib/index`. A dispatch of no workgroups is left out.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a binding or param is missing, unknown, mistyped or overlapping.
    pub fn groups(self, n: usize) -> Result<()> {
        let groups = fold(n);
        self.groups3(groups)
    }

    /// Finishes with at least `n` invocations, one dimension, by the kernel's own workgroup size.
    ///
    /// # Errors
    /// As [`Builder::groups`].
    pub fn threads(self, n: usize) -> Result<()> {
        let d = &self.dispatch;
        let size = wgsl::interface(d.kernel.module, d.kernel.entry, &d.spec)?.workgroup_size;
        let per_group = size.iter().product::<u32>() as usize;
        self.groups(n.div_ceil(per_group))
    }

    /// Finishes with an explicit grid.
    ///
    /// # Errors
    /// As [`Builder::groups`].
    pub fn groups3(mut self, groups: [u32; 3]) -> Result<()> {
        if groups.contains(&0) {
            return Ok(());
        }
        self.dispatch.groups = groups;
        check(&self.dispatch)?;
        self.recording.commands.push(Command::Dispatch(self.dispatch));
        Ok(())
    }
}

/// `n` workgroups as (x, y, 1) with x * y >= n, near square once x alone does not fit.
pub fn fold(n: usize) -> [u32; 3] {
    const MAX: usize = 65_535;
    if n <= MAX {
        return [n as u32, 1, 1];
    }
    let x = ((n as f64).sqrt().ceil() as usize).min(MAX);
    [x as u32, n.div_ceil(x) as u32, 1]
}

/// Compares a dispatch with the kernel's WGSL interface.
fn check(d: &Dispatch) -> Result<()> {
    let interface = wgsl::interface(d.kernel.module, d.kernel.entry, &d.spec)?;
    let fail = |what: String| Err(Error::kernel(format!("{} ({})", d.kernel, d.label), what));
    for slot in &interface.slots {
        let Some((_, slice)) = d.bindings.iter().find(|(n, _)| *n == slot.name) else {
            return fail(format!("binding {} is missing", slot.name));
        };
        if slice.dtype != slot.dtype {
            return fail(format!(
                "binding {} is {:?}, the WGSL declares {:?}",
                slot.name, slice.dtype, slot.dtype
            ));
        }
        if slice.offset % ALIGN != 0 {
            return fail(format!(
                "binding {} starts at element {}, not a multiple of {ALIGN}",
                slot.name, slice.offset
            ));
        }
        if slice.len == 0 {
            return fail(format!("binding {} is empty", slot.name));
        }
    }
    for (i, (name, slice)) in d.bindings.iter().enumerate() {
        if !interface.slots.iter().any(|s| s.name == *name) {
            return fail(format!("the WGSL has no binding {name}"));
        }
        for (other, o) in &d.bindings[..i] {
            if other == name || slice.overlaps(*o) {
                return fail(format!("bindings {other} and {name} overlap"));
            }
        }
    }
    for field in &interface.params {
        match (d.params.get(field.name.as_str()), field.dtype) {
            (Some(Value::U32(_)), DType::U32) | (Some(Value::F32(_)), DType::F32) => {}
            (got, want) => {
                return fail(format!("param {} is {got:?}, the WGSL declares {want:?}", field.name));
            }
        }
    }
    for name in d.params.keys() {
        if !interface.params.iter().any(|f| f.name == *name) {
            return fail(format!("the WGSL has no param {name}"));
        }
    }
    Ok(())
}

/// Something that runs recordings: the GPU, or the CPU at f32 or f64.
pub trait Engine: Send + Sync {
    /// What it is, for people: adapter name, backend, driver; or `cpu`.
    fn describe(&self) -> String;

    /// Largest buffer, in bytes.
    fn max_buffer_bytes(&self) -> u64;

    /// Largest range that one binding may cover, in bytes.
    fn max_binding_bytes(&self) -> u64;

    /// Allocates the layout's buffers, zeroed.
    ///
    /// # Errors
    /// [`Error::Limit`] or [`Error::OutOfMemory`].
    fn open(&self, layout: &Layout) -> Result<Box<dyn Session>>;
}

/// A recording made ready for replay in one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program(pub usize);

/// Memory of one layout and the programs that run on it.
pub trait Session: Send {
    /// Builds everything that a replay needs: pipelines, bind groups, param blocks.
    ///
    /// # Errors
    /// [`Error::Shader`], [`Error::Limit`], [`Error::Device`].
    fn prepare(&mut self, recording: &Recording) -> Result<Program>;

    /// Runs a program. Returns when it is queued, not when it is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Differs`] under `Verify`.
    fn run(&mut self, program: Program) -> Result<()>;

    /// Waits until all that was queued is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    fn wait(&mut self) -> Result<()>;

    /// Writes floats; ordered with the runs before and after.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the length or type differs; [`Error::DeviceLost`].
    fn write(&mut self, to: Slice, data: &[f32]) -> Result<()>;

    /// Writes `u32`s; ordered with the runs before and after.
    ///
    /// # Errors
    /// As [`Session::write`].
    fn write_u32(&mut self, to: Slice, data: &[u32]) -> Result<()>;

    /// Reads floats after everything queued before.
    ///
    /// # Errors
    /// As [`Session::write`].
    fn read(&mut self, from: Slice) -> Result<Vec<f32>>;

    /// Reads `u32`s after everything queued before.
    ///
    /// # Errors
    /// As [`Session::write`].
    fn read_u32(&mut self, from: Slice) -> Result<Vec<u32>>;
}

/// The usual argument check of [`Session`] reads and writes.
///
/// # Errors
/// [`Error::Kernel`] if length or type differ.
pub fn check_transfer(slice: Slice, dtype: DType, len: usize) -> Result<()> {
    if slice.dtype != dtype || slice.len != len {
        return Err(Error::kernel("transfer", format!("{len} elements of {dtype:?} do not fit {slice:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_covers_every_group() {
        for n in [0, 1, 2, 65_535, 65_536, 65_537, 1_000_003, 4_194_241, 16_777_216, 4_294_836_225] {
            let [x, y, z] = fold(n);
            assert!(x <= 65_535 && y <= 65_535 && z == 1, "{n}");
            assert!(x as usize * y as usize >= n, "{n}");
        }
    }

    #[test]
    fn overlap_is_about_elements() {
        let a = Slice { buffer: 0, offset: 0, len: 64, dtype: DType::F32 };
        assert!(!a.overlaps(Slice { offset: 64, ..a }));
        assert!(a.overlaps(Slice { offset: 63, ..a }));
        assert!(!a.overlaps(Slice { buffer: 1, ..a }));
    }
}
