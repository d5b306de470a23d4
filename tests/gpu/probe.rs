//! Kernels of `shaders/test` with their twins.

use veilgrad::kernel::{Args, Kernel, Real};
use veilgrad::record::{Recording, Slice};
use veilgrad::{Result, kernel};

pub static INCREMENT: Kernel = kernel!("test/probe", "increment", increment);
pub static FORWARD: Kernel = kernel!("test/probe", "forward", forward);
pub static COUNT: Kernel = kernel!("test/probe", "count", count);
pub static QUADS: Kernel = kernel!("test/probe", "quads", quads);
pub static SUM: Kernel = kernel!("test/workgroup", "sum", sum);
/// `increment` with a twin that forgets the last element.
pub static WRONG: Kernel = kernel!("test/probe", "increment", wrong);

fn increment<F: Real>(a: &mut Args<'_, F>) {
    let step = a.f("step");
    a.output("x").iter_mut().for_each(|x| *x += step);
}

fn wrong<F: Real>(a: &mut Args<'_, F>) {
    let step = a.f("step");
    a.output("x").iter_mut().rev().skip(1).for_each(|x| *x += step);
}

fn forward<F: Real>(a: &mut Args<'_, F>) {
    let step = a.f("step");
    a.output("y").iter_mut().zip(a.input("x")).for_each(|(y, &x)| *y = x + step);
}

fn count<F: Real>(a: &mut Args<'_, F>) {
    let base = a.n("base") as u32;
    a.output_u32("words").iter_mut().zip(base..).for_each(|(w, i)| *w = i);
}

fn quads<F: Real>(a: &mut Args<'_, F>) {
    let step = a.f("step");
    a.output("four").iter_mut().for_each(|x| *x *= step);
}

fn sum<F: Real>(a: &mut Args<'_, F>) {
    a.output_u32("y").fill(2016);
}

/// `x = x + step`.
pub fn add(rec: &mut Recording, kernel: &'static Kernel, x: Slice, step: f32) -> Result<()> {
    rec.dispatch(kernel).bind("x", x).n("n", x.len).n("base", 0).param("step", step).threads(x.len)
}

/// `y = x + step`.
pub fn add_to(rec: &mut Recording, x: Slice, y: Slice, step: f32) -> Result<()> {
    rec.dispatch(&FORWARD)
        .bind("x", x)
        .bind("y", y)
        .n("n", x.len)
        .n("base", 0)
        .param("step", step)
        .threads(x.len)
}

/// `words[i] = base + i`.
pub fn number(rec: &mut Recording, words: Slice, base: usize) -> Result<()> {
    rec.dispatch(&COUNT)
        .bind("words", words)
        .n("n", words.len)
        .n("base", base)
        .param("step", 0.0)
        .threads(words.len)
}
