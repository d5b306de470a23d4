//! A kernel: a WGSL entry point and its Rust twin, paired by value.
//!
//! The WGSL is the only source of the interface. The twin receives the same bindings and params under the
//! same names; at `f64`, in plain loops that follow the formula, it is the oracle of every test, and at `f32`
//! it is what the `cpu` engine runs.

use std::collections::BTreeMap;
use std::fmt;

/// The float type of a twin: `f32` on the `cpu` engine, `f64` for the oracle.
pub trait Real:
    num_traits::Float
    + num_traits::NumAssign
    + std::iter::Sum
    + Send
    + Sync
    + fmt::Debug
    + fmt::Display
    + Default
    + 'static
{
    /// From a constant of the formula.
    fn of(x: f64) -> Self;
    /// To `f64`, exactly.
    fn as_f64(self) -> f64;
    /// The error function.
    fn erf(self) -> Self;
}

impl Real for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
    fn as_f64(self) -> f64 {
        self as f64
    }
    fn erf(self) -> Self {
        libm::erff(self)
    }
}

impl Real for f64 {
    fn of(x: f64) -> Self {
        x
    }
    fn as_f64(self) -> f64 {
        self
    }
    fn erf(self) -> Self {
        libm::erf(self)
    }
}

/// A value of the kernel's `params` uniform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// `u32`
    U32(u32),
    /// `f32`
    F32(f32),
}

impl From<u32> for Value {
    fn from(x: u32) -> Self {
        Value::U32(x)
    }
}

impl From<f32> for Value {
    fn from(x: f32) -> Self {
        Value::F32(x)
    }
}

/// One binding as the twin sees it: a flat row-major slice of an exclusively held range.
#[derive(Debug)]
pub enum View<'a, F> {
    /// A float tensor.
    Float(&'a mut [F]),
    /// A `u32` tensor: ids, indices, words.
    Uint(&'a mut [u32]),
}

/// What a twin is called with: the bindings and params of one dispatch, by name.
///
/// # Panics
/// All accessors panic when a name is absent, taken twice or of the other type. A dispatch is checked against
/// the WGSL when it is recorded, so this is a fault of the twin.
#[derive(Debug)]
pub struct Args<'a, F> {
    kernel: &'static Kernel,
    params: &'a BTreeMap<&'static str, Value>,
    views: Vec<(&'static str, Option<View<'a, F>>)>,
}

impl<'a, F: Real> Args<'a, F> {
    /// Bundles the arguments of one call.
    pub fn new(
        kernel: &'static Kernel,
        params: &'a BTreeMap<&'static str, Value>,
        views: Vec<(&'static str, View<'a, F>)>,
    ) -> Self {
        Args { kernel, params, views: views.into_iter().map(|(n, v)| (n, Some(v))).collect() }
    }

    /// A `u32` param, as an index type.
    pub fn n(&self, name: &str) -> usize {
        match self.params.get(name) {
            Some(Value::U32(x)) => *x as usize,
            other => panic!("{}: param {name} is {other:?}, not a u32", self.kernel),
        }
    }

    /// An `f32` param.
    pub fn f(&self, name: &str) -> F {
        match self.params.get(name) {
            Some(Value::F32(x)) => F::of(*x as f64),
            other => panic!("{}: param {name} is {other:?}, not an f32", self.kernel),
        }
    }

    /// Whether the dispatch binds this name.
    pub fn has(&self, name: &str) -> bool {
        self.views.iter().any(|(n, _)| *n == name)
    }

    fn take(&mut self, name: &str) -> View<'a, F> {
        let kernel = self.kernel;
        self.views
            .iter_mut()
            .find(|(n, _)| *n == name)
            .and_then(|(_, view)| view.take())
            .unwrap_or_else(|| panic!("{kernel}: no binding {name} (or taken twice)"))
    }

    /// A float binding to read.
    pub fn input(&mut self, name: &str) -> &'a [F] {
        self.output(name)
    }

    /// A float binding to write.
    pub fn output(&mut self, name: &str) -> &'a mut [F] {
        match self.take(name) {
            View::Float(x) => x,
            View::Uint(_) => panic!("{}: binding {name} holds u32", self.kernel),
        }
    }

    /// A `u32` binding to read.
    pub fn input_u32(&mut self, name: &str) -> &'a [u32] {
        self.output_u32(name)
    }

    /// A `u32` binding to write.
    pub fn output_u32(&mut self, name: &str) -> &'a mut [u32] {
        match self.take(name) {
            View::Uint(x) => x,
            View::Float(_) => panic!("{}: binding {name} holds floats", self.kernel),
        }
    }
}

/// A WGSL entry point paired with its twin at both precisions. Made by [`kernel!`](crate::kernel!).
pub struct Kernel {
    /// Shader module without ending, e.g. `ops/gelu`.
    pub module: &'static str,
    /// Entry point, e.g. `forward`.
    pub entry: &'static str,
    /// The oracle: plain loops in the order of the formula.
    pub f64: fn(&mut Args<'_, f64>),
    /// What the `cpu` engine runs: the same function at `f32`, or a faster one with the same result.
    pub f32: fn(&mut Args<'_, f32>),
    /// Share of an output's elements that rounding may change altogether, because the formula has jumps: 0 for
    /// everything that is trained through, a little for drawings.
    pub jumps: f64,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.entry)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Declares a [`Kernel`]: `kernel!("ops/gelu", "forward", forward)` takes the generic twin at both
/// precisions; a fourth argument replaces the `f32` one.
#[macro_export]
macro_rules! kernel {
    ($module:literal, $entry:literal, $twin:ident) => {
        $crate::kernel::Kernel {
            module: $module,
            entry: $entry,
            f64: $twin::<f64>,
            f32: $twin::<f32>,
            jumps: 0.0,
        }
    };
    ($module:literal, $entry:literal, $twin:ident, $fast:path) => {
        $crate::kernel::Kernel { module: $module, entry: $entry, f64: $twin::<f64>, f32: $fast, jumps: 0.0 }
    };
}
