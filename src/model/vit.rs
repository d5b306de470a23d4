//! The vision transformer that both systems encode images with: patches, class token, positions, pre-norm blocks.

use std::sync::Arc;

use super::net::Net;
use super::positions::table_2d;
use crate::error::{Error, Result};
use crate::graph::{Init, Value};
use crate::ops::{
    Tensor,
    add_lookup::AddLookup,
    add_table::AddTable,
    gather_patches::GatherPatches,
    linear::Linear,
    patchify::{Order, Patchify},
    prepend_token::PrependToken,
};

/// LayerNorm epsilon of image encoders and of ViP's decoder.
pub(super) const EPS: f32 = 1e-6;

/// Initial values of class, mask and type vectors.
pub(super) const TOKEN: Init = Init::Normal(0.02);

/// Sizes and options of an encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vit {
    /// Side of the square input images, pixels.
    pub image: usize,
    /// Side of a patch, pixels.
    pub patch: usize,
    /// Width of a token.
    pub width: usize,
    /// Blocks.
    pub depth: usize,
    /// Heads.
    pub heads: usize,
    /// Whether the fused q, k, v projection has a bias.
    pub qkv_bias: bool,
    /// Train the class token.
    pub train_token: bool,
    /// Train the position table.
    pub train_positions: bool,
}

impl Vit {
    /// Patches of an image, L.
    pub fn patches(&self) -> usize {
        (self.image / self.patch).pow(2)
    }

    /// Checks that the sizes fit one another.
    pub fn validate(&self) -> Result<()> {
        let fail = |field: &str, value: usize, why: String| Err(Error::invalid(field, value, why));
        if self.patch == 0 || self.image == 0 || !self.image.is_multiple_of(self.patch) {
            return fail("patch", self.patch, format!("must divide the image side {}", self.image));
        }
        if self.depth == 0 {
            return fail("depth", 0, "must be positive".into());
        }
        check_width("", self.width, self.heads)
    }

    /// All tokens of all patches, class token first, positions added: input `images` (B, 3, S, S) to (B, 1 + L, D).
    pub fn tokens(&self, net: &mut Net<'_>) -> Result<Value> {
        let images = self.images(net)?;
        let order = Patchify { patch: self.patch, order: Order::ChannelRowColumn, standardize: false };
        let x = net.graph.apply("patchify", order, &[images])?;
        let x = self.embed(net, x)?;
        let table = self.positions(net)?;
        net.graph.apply("pos_embed", AddTable, &[x, table])
    }

    /// Tokens of `kept` chosen patches, class token first. Inputs besides `images`: `patches` (B, K) and `positions`
    /// (B, 1 + K), rows of the position table.
    pub fn chosen_tokens(&self, net: &mut Net<'_>, kept: usize) -> Result<Value> {
        let batch = net.graph.batch();
        let images = self.images(net)?;
        let patches = net.graph.input("patches", Tensor::uint([batch, kept]))?;
        let positions = net.graph.input("positions", Tensor::uint([batch, 1 + kept]))?;
        let x = net.graph.apply("patchify", GatherPatches { patch: self.patch }, &[images, patches])?;
        let x = self.embed(net, x)?;
        let table = self.positions(net)?;
        net.graph.apply("pos_embed", AddLookup, &[x, table, positions])
    }

    /// The output of every block.
    pub fn blocks(&self, net: &mut Net<'_>, mut x: Value) -> Result<Vec<Value>> {
        let mut blocks = Vec::new();
        for i in 0..self.depth {
            x = net.block(&format!("blocks.{i}"), x, self.heads, self.qkv_bias)?;
            blocks.push(x);
        }
        Ok(blocks)
    }

    fn images(&self, net: &mut Net<'_>) -> Result<Value> {
        net.graph.input("images", Tensor::float([net.graph.batch(), 3, self.image, self.image]))
    }

    /// Patches (B, L, 3 p p) to tokens (B, 1 + L, D), class token first.
    fn embed(&self, net: &mut Net<'_>, patches: Value) -> Result<Value> {
        let (d, p) = (self.width, self.patch);
        let n = 3 * p * p;
        let w = net.param("patch_embed.proj.weight", [d, 3, p, p], [d, n], Init::XavierUniform, true)?;
        let bound = Init::Uniform(1.0 / (n as f32).sqrt());
        let b = net.param("patch_embed.proj.bias", [d], [d], bound, true)?;
        let x = net.graph.apply("patch_embed", Linear { bias: true }, &[patches, w, b])?;
        let cls = net.param("cls_token", [1, 1, d], [d], TOKEN, self.train_token)?;
        net.graph.apply("cls_token", PrependToken, &[cls, x])
    }

    fn positions(&self, net: &mut Net<'_>) -> Result<Value> {
        let (l, d) = (self.patches(), self.width);
        let table = Init::Values(Arc::new(table_2d(self.image / self.patch, d)));
        net.param("pos_embed", [1, 1 + l, d], [1 + l, d], table, self.train_positions)
    }
}

/// Checks a width against its heads; `prefix` names the part of the model.
pub(super) fn check_width(prefix: &str, width: usize, heads: usize) -> Result<()> {
    if heads == 0 || !width.is_multiple_of(heads) {
        let why = format!("must divide the width {width}");
        return Err(Error::invalid(format!("{prefix}heads"), heads, why));
    }
    if width == 0 || !width.is_multiple_of(4) {
        let why = "must be a multiple of 4 for the position table";
        return Err(Error::invalid(format!("{prefix}width"), width, why));
    }
    Ok(())
}
