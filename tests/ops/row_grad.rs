//! The rules of explicit per-example rows against plain loops.

use veilgrad::ops::row_grad::{
    Segment, record_sq_norm, record_sq_norm_single, record_sum, record_sum_single, table,
};
use veilgrad::record::{Recording, Slice};

use crate::harness::engines;
use crate::lab::{Lab, assert_close, rounding};

const WIDTHS: [usize; 9] = [1, 3, 63, 64, 65, 128, 257, 768, 1600];

struct Rows {
    lab: Lab,
    batch: usize,
    segments: Vec<Segment>,
    rows: Slice,
    table: Slice,
    grads: Slice,
}

/// Segments with gaps between them, the gradient in another order.
fn rows(seed: u64, batch: usize) -> Rows {
    let mut lab = Lab::new(seed);
    let (mut start, mut dst) = (64, 5);
    let mut segments = Vec::new();
    for n in WIDTHS {
        segments.push(Segment { start, n, dst });
        start = (start + batch * n).next_multiple_of(64) + 64;
        dst += n + 2;
    }
    let targets: Vec<usize> = segments.iter().rev().map(|s| s.n).collect();
    let mut dst = 3;
    for (s, n) in segments.iter_mut().rev().zip(targets) {
        s.dst = dst;
        dst += n + 1;
    }
    let rows = lab.normal(start);
    let table = lab.uints(&table(&segments).expect("fits"));
    let grads = lab.normal(dst + 7);
    Rows { lab, batch, segments, rows, table, grads }
}

#[test]
fn norms_of_all_segments() {
    for batch in [1, 3, 66] {
        let mut r = rows(1, batch);
        let stride = batch + 5;
        let out = r.lab.blank(WIDTHS.len() * stride);
        let mut rec = Recording::new();
        record_sq_norm(&mut rec, r.rows, r.table, &r.segments, batch, out, stride).expect("records");
        let values = r.lab.values(r.rows);
        let oracle = r.lab.oracle(&rec);
        for (e, engine) in engines().iter().enumerate() {
            let run = r.lab.run(engine.as_ref(), &rec, &[out]);
            for (p, s) in r.segments.iter().enumerate() {
                let want: Vec<f64> = (0..r.batch)
                    .map(|b| values[s.start + b * s.n..][..s.n].iter().map(|x| x * x).sum())
                    .collect();
                let what = format!("engine {e}, segment {p}");
                let at = p * stride;
                assert_close(&what, &run.values(out)[at..at + batch], &want, |b| rounding(s.n) * want[b]);
                assert_close(&what, &oracle.values(out)[at..at + batch], &want, |b| 1e-12 * want[b]);
                assert!(run.values(out)[at + batch..at + stride].iter().all(|x| x.is_nan()), "{what}");
            }
        }
    }
}

fn factors(batch: usize) -> Vec<f64> {
    (0..batch).map(|b| [1.0, 0.0, 0.25, 0.8][b % 4]).collect()
}

#[test]
fn sums_of_all_segments() {
    for batch in [1, 3, 66] {
        let mut r = rows(2, batch);
        let f = r.lab.given(&factors(batch));
        let mut rec = Recording::new();
        record_sum(&mut rec, r.rows, r.table, &r.segments, batch, f, 0, r.grads).expect("records");
        let mut want = r.lab.values(r.grads).to_vec();
        let mut size: Vec<f64> = want.iter().map(|x| x.abs()).collect();
        for s in &r.segments {
            for (b, factor) in factors(batch).iter().enumerate() {
                for c in 0..s.n {
                    let term = *factor as f32 as f64 * r.lab.values(r.rows)[s.start + b * s.n + c];
                    want[s.dst + c] += term;
                    size[s.dst + c] += term.abs();
                }
            }
        }
        assert_close("oracle", r.lab.oracle(&rec).values(r.grads), &want, |i| 1e-12 * size[i]);
        for engine in engines() {
            let run = r.lab.run(engine.as_ref(), &rec, &[r.grads]);
            assert_close(&engine.describe(), run.values(r.grads), &want, |i| rounding(batch) * size[i]);
        }
    }
}

#[test]
fn a_row_of_factor_zero_leaves_no_trace() {
    let run = |poison: f64| {
        let mut r = rows(3, 4);
        for s in r.segments.clone() {
            r.lab.values_mut(r.rows)[s.start + s.n..s.start + 2 * s.n].fill(poison);
        }
        let f = r.lab.given(&factors(4));
        let single = r.segments[5];
        let (one, grad) = (r.rows.part(single.start, 4 * single.n), r.lab.normal(single.n));
        let mut rec = Recording::new();
        record_sum(&mut rec, r.rows, r.table, &r.segments, 4, f, 0, r.grads).expect("records");
        record_sum_single(&mut rec, one, 4, single.n, f, grad).expect("records");
        let bits = |e: &dyn veilgrad::record::Engine| {
            let run = r.lab.run(e, &rec, &[r.grads, grad]);
            (run.bits(r.grads), run.bits(grad))
        };
        engines().iter().map(|e| bits(e.as_ref())).collect::<Vec<_>>()
    };
    let clean = run(0.0);
    for poison in [f64::NAN, f64::INFINITY, 3e38] {
        assert_eq!(clean, run(poison), "{poison}");
    }
}

#[test]
fn one_tensor_by_itself() {
    for (batch, n) in [(1, 1), (3, 65), (5, 8320), (65_540, 3)] {
        let mut lab = Lab::new(4);
        let (rows, f) = (lab.normal(batch * n), lab.given(&factors(batch)));
        let (out, grad) = (lab.blank(batch), lab.normal(n));
        let mut rec = Recording::new();
        record_sq_norm_single(&mut rec, rows, batch, n, out).expect("records");
        record_sum_single(&mut rec, rows, batch, n, f, grad).expect("records");
        let norms: Vec<f64> = lab.values(rows).chunks(n).map(|r| r.iter().map(|x| x * x).sum()).collect();
        let mut want = lab.values(grad).to_vec();
        let mut size: Vec<f64> = want.iter().map(|x| x.abs()).collect();
        for (row, factor) in lab.values(rows).chunks(n).zip(lab.values(f)) {
            for c in 0..n {
                want[c] += factor * row[c];
                size[c] += (factor * row[c]).abs();
            }
        }
        let oracle = lab.oracle(&rec);
        assert_close("oracle norm", oracle.values(out), &norms, |b| 1e-12 * norms[b]);
        assert_close("oracle sum", oracle.values(grad), &want, |c| 1e-10 * size[c]);
        for engine in engines() {
            let run = lab.run(engine.as_ref(), &rec, &[out, grad]);
            assert_close("norm", run.values(out), &norms, |b| rounding(n) * norms[b]);
            assert_close("sum", run.values(grad), &want, |c| rounding(batch) * size[c]);
        }
    }
}

#[test]
fn misfits_are_refused() {
    let r = rows(5, 4);
    let rec = &mut Recording::new();
    assert!(record_sq_norm(rec, r.rows, r.table, &r.segments, 4, r.grads, 3).is_err());
    assert!(record_sq_norm(rec, r.rows, r.table, &r.segments[1..], 4, r.grads, 4).is_err());
    assert!(record_sq_norm(rec, r.rows, r.table, &r.segments, 400, r.grads, 400).is_err());
    assert!(record_sum(rec, r.rows, r.table, &r.segments, 4, r.grads.part(0, 3), 0, r.grads).is_err());
    assert!(record_sq_norm_single(rec, r.rows, 3, 5, r.grads).is_err());
    assert!(record_sum_single(rec, r.rows.part(0, 15), 3, 5, r.grads, r.grads.part(0, 4)).is_err());
    assert!(table(&[Segment { start: 1 << 33, n: 1, dst: 0 }]).is_err());
}
