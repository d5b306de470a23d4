//! Layers over a graph, under the published parameter names.

use rand_core::Rng;

use crate::error::{Error, Result};
use crate::graph::{Graph, Init, ParamSpec, Value};
use crate::ops::{add::Add, attention::Attention, gelu::Gelu, layer_norm::LayerNorm, linear::Linear};
use crate::rng::{Key, normal, unit};
use crate::shape::Shape;

/// Builds layers on a graph.
pub struct Net<'g> {
    /// The graph being built.
    pub graph: &'g mut Graph,
    /// Epsilon of every LayerNorm.
    pub eps: f32,
}

impl Net<'_> {
    /// A parameter seen in `view`.
    ///
    /// # Errors
    /// As [`Graph::param_as`].
    pub fn param(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        view: impl Into<Shape>,
        init: Init,
        trainable: bool,
    ) -> Result<Value> {
        self.graph.param_as(&ParamSpec { name: name.into(), shape: shape.into(), init, trainable }, view)
    }

    /// `y = x W^T + b`: `NAME.weight` (out, in), Xavier-uniform, and `NAME.bias` (out), zero.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn linear(&mut self, name: &str, x: Value, out: usize, bias: bool) -> Result<Value> {
        let width = self.graph.shape(x).width();
        let weight = [out, width];
        let w = self.param(&format!("{name}.weight"), weight, weight, Init::XavierUniform, true)?;
        if !bias {
            return self.graph.apply(name, Linear { bias: false }, &[x, w]);
        }
        let b = self.param(&format!("{name}.bias"), [out], [out], Init::Constant(0.0), true)?;
        self.graph.apply(name, Linear { bias: true }, &[x, w, b])
    }

    /// LayerNorm with `NAME.weight` and `NAME.bias`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn layer_norm(&mut self, name: &str, x: Value) -> Result<Value> {
        let width = self.graph.shape(x).width();
        let gamma = self.param(&format!("{name}.weight"), [width], [width], Init::Constant(1.0), true)?;
        let beta = self.param(&format!("{name}.bias"), [width], [width], Init::Constant(0.0), true)?;
        self.graph.apply(name, LayerNorm { eps: self.eps }, &[x, gamma, beta])
    }

    /// A pre-norm transformer block: `y = x + proj(attention(norm1(x)))`, `z = y + fc2(gelu(fc1(norm2(y))))`.
    ///
    /// # Errors
    /// [`Error::Shape`], also if the width is no multiple of the heads.
    pub fn block(&mut self, name: &str, x: Value, heads: usize, qkv_bias: bool) -> Result<Value> {
        let width = self.graph.shape(x).width();
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::shape(name, format!("width {width} is no multiple of {heads} heads")));
        }
        let h = self.layer_norm(&format!("{name}.norm1"), x)?;
        let qkv = self.linear(&format!("{name}.attn.qkv"), h, 3 * width, qkv_bias)?;
        let h = self.graph.apply(&format!("{name}.attn"), Attention::full(heads), &[qkv])?;
        let h = self.linear(&format!("{name}.attn.proj"), h, width, true)?;
        let y = self.graph.apply(&format!("{name}.add1"), Add, &[x, h])?;
        let h = self.layer_norm(&format!("{name}.norm2"), y)?;
        let h = self.linear(&format!("{name}.mlp.fc1"), h, 4 * width, true)?;
        let h = self.graph.apply(&format!("{name}.mlp.act"), Gelu, &[h])?;
        let h = self.linear(&format!("{name}.mlp.fc2"), h, width, true)?;
        self.graph.apply(&format!("{name}.add2"), Add, &[y, h])
    }
}

/// Initial values of a parameter. Each parameter reads a stream of its own, named by its index in the model, so
/// that values do not depend on what else is initialised.
pub fn init_values(spec: &ParamSpec, index: usize, key: &Key) -> Vec<f32> {
    let n = spec.shape.len();
    let mut rng = key.stream(index as u64);
    let uniform = |bound: f64, rng: &mut dyn Rng| -> Vec<f32> {
        (0..n).map(|_| ((2.0 * unit(&mut &mut *rng) - 1.0) * bound) as f32).collect()
    };
    match &spec.init {
        Init::Constant(x) => vec![*x; n],
        Init::Normal(std) => (0..n).map(|_| (normal(&mut rng) * *std as f64) as f32).collect(),
        Init::Uniform(bound) => uniform(*bound as f64, &mut rng),
        Init::XavierUniform => {
            let fan_out = spec.shape.dims()[0];
            let fan_in = n / fan_out;
            uniform((6.0 / (fan_in + fan_out) as f64).sqrt(), &mut rng)
        }
        Init::Values(values) => values.to_vec(),
    }
}
