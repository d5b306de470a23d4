//! Products of all shapes and transpositions, by every kernel family, against plain loops.

use veilgrad::ops::matmul::{Choice, Extras, Spec, Variant, pick, record_as};
use veilgrad::record::{Recording, Slice};

use crate::harness::engines;
use crate::lab::{Lab, rounding};

/// Recorded products that share an arena.
struct Products {
    lab: Lab,
    rec: Recording,
    items: Vec<Item>,
}

struct Item {
    spec: Spec,
    a: Slice,
    b: Slice,
    c: Slice,
    extras: Extras,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fused {
    Nothing,
    Bias,
    Accumulate,
    /// Rows per factor.
    Factors(usize),
}

impl Products {
    fn new(seed: u64) -> Self {
        Products { lab: Lab::new(seed), rec: Recording::new(), items: Vec::new() }
    }

    fn add(&mut self, spec: Spec, fused: Fused, choice: impl Fn(&Spec, &Extras) -> Choice) {
        let s = &spec;
        let lab = &mut self.lab;
        let stored = |rows: usize, o: veilgrad::ops::matmul::Operand, width: usize| {
            (s.batch - 1) * o.batch_stride + (rows - 1) * o.row_stride + width
        };
        let a = lab.normal(if s.trans_a { stored(s.k, s.a, s.m) } else { stored(s.m, s.a, s.k) });
        let b = lab.normal(if s.trans_b { stored(s.n, s.b, s.k) } else { stored(s.k, s.b, s.n) });
        let len = stored(s.m, s.c, s.n);
        let c = if fused == Fused::Accumulate { lab.normal(len) } else { lab.blank(len) };
        let mut extras = Extras { accumulate: fused == Fused::Accumulate, ..Extras::default() };
        match fused {
            Fused::Bias => extras.bias = Some(lab.normal(s.n)),
            Fused::Factors(rows) => {
                let count = s.k.div_ceil(rows);
                let factors: Vec<f64> = (0..count).map(|i| [0.0, 1.0, 0.25, 0.6][i * 7 % 4]).collect();
                extras.factors = Some((lab.given(&factors), rows));
            }
            _ => {}
        }
        record_as(&mut self.rec, choice(s, &extras), s, a, b, c, &extras).expect("records");
        self.items.push(Item { spec, a, b, c, extras });
    }

    /// Value and sum of magnitudes of every element of C.
    fn reference(&self, item: &Item) -> Vec<(usize, f64, f64)> {
        let (s, v) = (&item.spec, |slice: Slice| self.lab.values(slice));
        let mut out = Vec::new();
        for p in 0..s.batch {
            for i in 0..s.m {
                for j in 0..s.n {
                    let at = p * s.c.batch_stride + i * s.c.row_stride + j;
                    let start = item.extras.bias.map_or(0.0, |bias| v(bias)[j])
                        + if item.extras.accumulate { v(item.c)[at] } else { 0.0 };
                    let (mut sum, mut size) = (start, start.abs());
                    for k in 0..s.k {
                        let (ra, ca) = if s.trans_a { (k, i) } else { (i, k) };
                        let (rb, cb) = if s.trans_b { (j, k) } else { (k, j) };
                        let factor = item.extras.factors.map_or(1.0, |(f, rows)| v(f)[k / rows]);
                        let term = factor
                            * v(item.a)[p * s.a.batch_stride + ra * s.a.row_stride + ca]
                            * v(item.b)[p * s.b.batch_stride + rb * s.b.row_stride + cb];
                        sum += term;
                        size += term.abs();
                    }
                    out.push((at, sum, size));
                }
            }
        }
        out
    }

    fn check(&self) {
        let written: Vec<Slice> = self.items.iter().map(|i| i.c).collect();
        let oracle = self.lab.oracle(&self.rec);
        let runs: Vec<_> = engines().iter().map(|e| self.lab.run(e.as_ref(), &self.rec, &written)).collect();
        for item in &self.items {
            for (at, want, size) in self.reference(item) {
                let name = || format!("{:?} {:?} C[{at}]", item.spec, item.extras);
                let got = oracle.values(item.c)[at];
                assert!((got - want).abs() <= 1e-12 * (size + 1e-30), "oracle {}: {got} {want}", name());
                for run in &runs {
                    let got = run.values(item.c)[at];
                    let bound = rounding(item.spec.k) * size;
                    assert!((got - want).abs() <= bound, "{}: {got}, want {want} within {bound:e}", name());
                }
            }
        }
    }
}

fn transpositions() -> [(bool, bool); 4] {
    [(false, false), (false, true), (true, false), (true, true)]
}

#[test]
fn all_small_shapes() {
    for (n, (ta, tb)) in transpositions().into_iter().enumerate() {
        let mut products = Products::new(n as u64);
        for m in 1..=17 {
            for n in 1..=17 {
                for k in 1..=17 {
                    // Every size of each side with every pair of two others' classes; all triples up to 9.
                    if m.max(n).max(k) <= 9 || (m + 2 * n + 3 * k) % 5 == 0 {
                        products.add(Spec::new(m, n, k, ta, tb), Fused::Nothing, pick);
                    }
                }
            }
        }
        products.check();
    }
}

#[test]
fn awkward_shapes() {
    const SIDES: [usize; 12] = [1, 8, 31, 33, 63, 64, 65, 66, 127, 128, 197, 257];
    let mut products = Products::new(10);
    for (i, &m) in SIDES.iter().enumerate() {
        for (j, &n) in SIDES.iter().enumerate() {
            let k = SIDES[(i * 5 + j * 7) % SIDES.len()];
            let (ta, tb) = transpositions()[(i + j / 2) % 4];
            let fused = match (i * 3 + j) % 4 {
                0 => Fused::Nothing,
                1 => Fused::Bias,
                2 => Fused::Accumulate,
                _ if ta && !tb => Fused::Factors(17),
                _ => Fused::Accumulate,
            };
            products.add(Spec::new(m, n, k, ta, tb), fused, pick);
        }
    }
    // Shapes that were wrong in other engines.
    for (m, n, k) in [(535, 64, 64), (382, 10, 1), (382, 10, 3), (4096, 14, 5), (1, 512, 64), (512, 1, 64)] {
        products.add(Spec::new(m, n, k, false, true), Fused::Bias, pick);
        products.add(Spec::new(m, n, k, true, false), Fused::Factors(3), pick);
    }
    products.check();
}

#[test]
fn every_kernel_family() {
    let mut products = Products::new(20);
    for (ta, tb) in transpositions() {
        for (m, n, k) in [(4, 4, 4), (12, 36, 8), (68, 132, 64), (128, 64, 1024)] {
            let spec = Spec::new(m, n, k, ta, tb);
            for variant in [Variant::Tile, Variant::Split, Variant::Any] {
                for (rows, columns, lanes) in [(4, 1, 8), (8, 2, 16), (4, 3, 32)] {
                    let slices = if variant == Variant::Split { 256 / lanes / 8 } else { 1 };
                    let (rows, columns) = if variant == Variant::Split { (4, 1) } else { (rows, columns) };
                    let choice = Choice { variant, rows, columns, lanes, slices };
                    let mut fusions = vec![Fused::Nothing, Fused::Accumulate];
                    if variant != Variant::Split {
                        fusions.push(Fused::Bias);
                    }
                    if ta && !tb {
                        fusions.push(Fused::Factors(5));
                    }
                    for fused in fusions {
                        products.add(spec, fused, |_, _| choice);
                    }
                }
            }
        }
        // Any k for A^T B by quads, and a split whose last slices are empty.
        if ta && !tb {
            for k in [1, 2, 3, 5, 17, 1027] {
                for (variant, slices) in [(Variant::Tile, 1), (Variant::Split, 8)] {
                    let choice = Choice { variant, rows: 4, columns: 1, lanes: 8, slices };
                    products.add(Spec::new(20, 12, k, ta, tb), Fused::Factors(4), |_, _| choice);
                    products.add(Spec::new(20, 12, k, ta, tb), Fused::Nothing, |_, _| choice);
                }
            }
        }
    }
    products.check();
}

#[test]
fn batches_and_strides() {
    let mut products = Products::new(30);
    for (ta, tb) in transpositions() {
        for (m, n, k) in [(5, 7, 3), (8, 16, 4), (17, 17, 64)] {
            products.add(Spec::new(m, n, k, ta, tb).batched(5), Fused::Nothing, pick);
            products.add(Spec::new(m, n, k, ta, tb).batched(3), Fused::Accumulate, pick);
            // One B for all, and rows with a gap: a head's columns of a wider tensor.
            let mut spec = Spec::new(m, n, k, ta, tb).batched(4);
            spec.b.batch_stride = 0;
            spec.a.row_stride += 12;
            spec.a.batch_stride = 64 * spec.a.row_stride;
            products.add(spec, Fused::Nothing, pick);
        }
    }
    products.check();
}

#[test]
fn more_groups_than_one_dimension_holds() {
    let mut products = Products::new(40);
    products.add(Spec::new(4, 4, 4, false, true).batched(65_537), Fused::Nothing, pick);
    products.add(Spec::new(1, 1, 1, false, false).batched(65_537), Fused::Nothing, pick);
    products.check();
}

#[test]
fn a_row_of_factor_zero_is_nothing() {
    for (m, n, tokens) in [(24, 40, 17), (33, 7, 5), (8, 8, 300)] {
        let spec = Spec::new(m, n, 4 * tokens, true, false);
        let run = |poison: f64| {
            let mut lab = Lab::new(50);
            let (a, b) = (lab.normal(spec.k * m), lab.normal(spec.k * n));
            let (c, factors) = (lab.normal(m * n), lab.given(&[0.5, 0.0, 1.0, 0.0]));
            lab.values_mut(a)[tokens * m..2 * tokens * m].fill(poison);
            lab.values_mut(b)[3 * tokens * n..].fill(poison);
            let mut rec = Recording::new();
            let extras = Extras { factors: Some((factors, tokens)), accumulate: true, bias: None };
            record_as(&mut rec, pick(&spec, &extras), &spec, a, b, c, &extras).expect("records");
            engines().iter().map(|e| lab.run(e.as_ref(), &rec, &[c]).bits(c)).collect::<Vec<_>>()
        };
        let clean = run(0.0);
        assert_eq!(clean, run(f64::NAN));
        assert_eq!(clean, run(f64::INFINITY));
        assert_eq!(clean, run(3e38));
    }
}

#[test]
fn misfits_are_refused() {
    let mut lab = Lab::new(60);
    let (a, b, c) = (lab.normal(64), lab.normal(64), lab.blank(64));
    let refused = |spec: Spec, extras: Extras| {
        record_as(&mut Recording::new(), pick(&spec, &extras), &spec, a, b, c, &extras).is_err()
    };
    let plain = Extras::default();
    assert!(!refused(Spec::new(8, 8, 8, false, false), plain));
    assert!(refused(Spec::new(8, 8, 9, false, false), plain));
    assert!(refused(Spec::new(8, 9, 8, false, true), plain));
    assert!(refused(Spec::new(8, 8, 8, false, false).batched(2), plain));
    let factors = Extras { factors: Some((c.part(0, 1), 8)), ..plain };
    assert!(refused(Spec::new(8, 8, 8, false, false), factors));
    assert!(refused(Spec::new(8, 8, 8, false, false), Extras { bias: Some(a.part(0, 4)), ..plain }));
    let mut overlapping = Spec::new(4, 4, 4, false, false).batched(2);
    overlapping.c.batch_stride = 12;
    assert!(refused(overlapping, plain));
}
