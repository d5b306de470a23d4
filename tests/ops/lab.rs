//! Runs a recording of kernels that are no ops, in an arena full of canaries.

use rand_core::Rng;
use veilgrad::cpu::CpuEngine;
use veilgrad::ops::Tensor;
use veilgrad::record::{ALIGN, DType, Engine, Layout, Recording, Session, Slice};
use veilgrad::rng::{Key, normal};

/// One float and one `u32` arena. Every element outside the inputs is NaN (or all ones) at first, before, between
/// and after the tensors.
pub struct Lab {
    floats: Vec<f64>,
    uints: Vec<u32>,
    rng: rand_chacha::ChaCha20Rng,
}

impl Lab {
    pub fn new(seed: u64) -> Self {
        Lab {
            floats: vec![f64::NAN; ALIGN],
            uints: vec![u32::MAX; ALIGN],
            rng: Key::from_seed(seed).stream(0),
        }
    }

    /// A tensor of these values, rounded to f32.
    pub fn given(&mut self, values: &[f64]) -> Slice {
        let slice = Slice { buffer: 0, offset: self.floats.len(), len: values.len(), dtype: DType::F32 };
        self.floats.extend(values.iter().map(|&x| x as f32 as f64));
        let end = (self.floats.len() + 1).next_multiple_of(ALIGN);
        self.floats.resize(end, f64::NAN);
        slice
    }

    pub fn normal(&mut self, len: usize) -> Slice {
        let values: Vec<f64> = (0..len).map(|_| normal(&mut self.rng)).collect();
        self.given(&values)
    }

    /// A tensor to be written: NaN.
    pub fn blank(&mut self, len: usize) -> Slice {
        self.given(&vec![f64::NAN; len])
    }

    pub fn scratch(&mut self, tensors: Vec<Tensor>) -> Vec<Slice> {
        tensors.iter().map(|t| self.blank(t.shape.len())).collect()
    }

    pub fn uints(&mut self, values: &[u32]) -> Slice {
        let slice = Slice { buffer: 1, offset: self.uints.len(), len: values.len(), dtype: DType::U32 };
        self.uints.extend(values);
        let end = (self.uints.len() + 1).next_multiple_of(ALIGN);
        self.uints.resize(end, u32::MAX);
        slice
    }

    pub fn ids(&mut self, len: usize, bound: u32) -> Slice {
        let values: Vec<u32> = (0..len).map(|_| self.rng.next_u32() % bound).collect();
        self.uints(&values)
    }

    pub fn values(&self, slice: Slice) -> &[f64] {
        &self.floats[slice.offset..slice.offset + slice.len]
    }

    pub fn values_mut(&mut self, slice: Slice) -> &mut [f64] {
        &mut self.floats[slice.offset..slice.offset + slice.len]
    }

    pub fn values_u32(&self, slice: Slice) -> &[u32] {
        &self.uints[slice.offset..slice.offset + slice.len]
    }

    fn layout(&self) -> Layout {
        let mut layout = Layout::default();
        layout.add("floats", DType::F32, self.floats.len());
        layout.add("uints", DType::U32, self.uints.len());
        layout
    }

    fn arena(&self) -> Slice {
        Slice { buffer: 0, offset: 0, len: self.floats.len(), dtype: DType::F32 }
    }

    /// The arena after the recording. Fails if anything but `written` has changed.
    pub fn run(&self, engine: &dyn Engine, rec: &Recording, written: &[Slice]) -> Arena {
        let mut session = engine.open(&self.layout()).expect("session");
        let before: Vec<f32> = self.floats.iter().map(|&x| x as f32).collect();
        session.write(self.arena(), &before).expect("write");
        let uints = Slice { buffer: 1, offset: 0, len: self.uints.len(), dtype: DType::U32 };
        session.write_u32(uints, &self.uints).expect("write");
        let program = session.prepare(rec).expect("prepare");
        session.run(program).expect("run");
        let after = session.read(self.arena()).expect("read");
        let mut allowed = vec![false; after.len()];
        for s in written {
            allowed[s.offset..s.offset + s.len].fill(true);
        }
        for (i, allowed) in allowed.iter().enumerate() {
            let same = after[i].to_bits() == before[i].to_bits() || (after[i].is_nan() && before[i].is_nan());
            assert!(*allowed || same, "{}: element {i} was overwritten", engine.describe());
        }
        Arena(after.into_iter().map(f64::from).collect())
    }

    /// The arena after the recording on the f64 twins.
    pub fn oracle(&self, rec: &Recording) -> Arena {
        let mut session = CpuEngine::<f64>::new().session(&self.layout());
        session.write_real(self.arena(), &self.floats).expect("write");
        let uints = Slice { buffer: 1, offset: 0, len: self.uints.len(), dtype: DType::U32 };
        session.write_u32(uints, &self.uints).expect("write");
        let program = session.prepare(rec).expect("prepare");
        session.run(program).expect("run");
        Arena(session.read_real(self.arena()).expect("read"))
    }
}

/// What a run leaves in the float arena.
#[derive(Debug)]
pub struct Arena(Vec<f64>);

impl Arena {
    pub fn values(&self, slice: Slice) -> &[f64] {
        &self.0[slice.offset..slice.offset + slice.len]
    }

    pub fn bits(&self, slice: Slice) -> Vec<u64> {
        self.values(slice).iter().map(|x| x.to_bits()).collect()
    }
}

/// Fails at the first value that is further off than its own bound; NaN is.
pub fn assert_close(what: &str, got: &[f64], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = bound(i);
        assert!((g - w).abs() <= allowed, "{what}[{i}] = {g:e}, want {w:e} within {allowed:e}");
    }
}

/// Rounding of a sum of `n` products in f32, per unit of the sum of their magnitudes.
pub fn rounding(n: usize) -> f64 {
    (n + 4) as f64 * f32::EPSILON as f64
}
