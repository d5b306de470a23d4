//! Clip factors and clipped sums.

use veilgrad::Error;
use veilgrad::cpu::CpuEngine;
use veilgrad::graph::{Mode, Plan};
use veilgrad::privacy::clip::{ClipCounts, ClipRule, Clipped, Factors};
use veilgrad::privacy::oracle::{clipped_sum, compare};
use veilgrad::record::{DType, Engine, Layout, Recording, Session};

use crate::rig::{TOKENS, engines, lower, normals, open, perceptron};

const WIDTHS: [usize; 3] = [5, 7, 4];

const RULES: [ClipRule; 4] = [
    ClipRule::Flat { norm: 0.5 },
    ClipRule::Flat { norm: 1e-3 },
    ClipRule::PerLayer { norm: 0.5 },
    ClipRule::Automatic { norm: 0.5, gamma: 0.01 },
];

/// One example's x and target; growing with its number, so that some are clipped and some are not.
fn example(i: u64) -> (Vec<f32>, Vec<f32>) {
    let scale = 0.02 * 1.6f32.powi(i as i32);
    let values = |seed, n| normals(seed, n).into_iter().map(|x| x * scale).collect();
    (values(2 * i, TOKENS * WIDTHS[0]), values(2 * i + 1, TOKENS * WIDTHS[2]))
}

fn write_parameters(session: &mut dyn Session, plan: &Plan) {
    for (i, slot) in plan.params.iter().enumerate() {
        session.write(slot.values, &normals(100 + i as u64, slot.values.len)).unwrap();
    }
}

fn write_examples(session: &mut dyn Session, plan: &Plan, examples: &[Option<(Vec<f32>, Vec<f32>)>]) {
    let padding = (vec![f32::NAN; TOKENS * WIDTHS[0]], vec![1.0; TOKENS * WIDTHS[2]]);
    let used = || examples.iter().map(|e| e.as_ref().unwrap_or(&padding));
    let x: Vec<f32> = used().flat_map(|e| e.0.clone()).collect();
    let target: Vec<f32> = used().flat_map(|e| e.1.clone()).collect();
    let weights: Vec<f32> = examples.iter().map(|e| e.is_some() as u8 as f32).collect();
    session.write(plan.input("x").unwrap(), &x).unwrap();
    session.write(plan.input("target").unwrap(), &target).unwrap();
    session.write(plan.input("mask").unwrap(), &vec![1.0; examples.len() * TOKENS]).unwrap();
    session.write(plan.weights.unwrap(), &weights).unwrap();
}

fn gradients(session: &mut dyn Session, plan: &Plan) -> Vec<f64> {
    let read = |s: &_| session.read(*s).unwrap();
    let all: Vec<f32> = plan.params.iter().filter_map(|p| p.grad.as_ref()).flat_map(read).collect();
    all.into_iter().map(f64::from).collect()
}

/// Gradients of single examples, written out by a plain plan of batch one at f64.
fn singles(examples: &[u64]) -> Vec<Vec<f64>> {
    let engine = CpuEngine::<f64>::new();
    let (graph, loss) = perceptron(1, WIDTHS);
    let plan = lower(&engine, &graph, Mode::Plain { loss }, None, u64::MAX);
    let mut session = open(&engine, &plan);
    write_parameters(session.as_mut(), &plan);
    let programs =
        [&plan.zero, &plan.forward, &plan.backward, &plan.sums].map(|r| session.prepare(r).unwrap());
    let single = |&i: &u64| {
        write_examples(session.as_mut(), &plan, &[Some(example(i))]);
        programs.iter().for_each(|p| session.run(*p).unwrap());
        gradients(session.as_mut(), &plan)
    };
    examples.iter().map(single).collect()
}

/// One example's gradients of both parameters.
type Gradients = (Vec<f32>, Vec<f32>);

/// Runs physical batches and returns the clipped sum with its counters.
fn clipped(
    engine: &dyn Engine,
    rule: ClipRule,
    batches: &[Vec<Option<Gradients>>],
) -> (Vec<f64>, ClipCounts, Vec<(String, usize)>) {
    let (graph, loss) = perceptron(batches[0].len(), WIDTHS);
    let mut plan = lower(engine, &graph, Mode::PerExample { loss }, Some(rule), u64::MAX);
    let Clipped { physical, sum, counter } = Clipped::new(&mut plan, rule).unwrap();
    assert_eq!((sum.sensitivity(), sum.rule()), (rule.bound(), rule));
    let mut session = open(engine, &plan);
    write_parameters(session.as_mut(), &plan);
    let (zero, physical) = (session.prepare(&plan.zero).unwrap(), session.prepare(&physical).unwrap());
    // Twice, so that what a logical batch leaves behind shows.
    for _ in 0..2 {
        session.run(zero).unwrap();
        for batch in batches {
            write_examples(session.as_mut(), &plan, batch);
            session.run(physical).unwrap();
        }
    }
    let names = plan.params.iter().map(|p| (p.spec.name.clone(), p.spec.shape.len())).collect();
    (gradients(session.as_mut(), &plan), counter.read(session.as_mut()).unwrap(), names)
}

#[test]
fn clipped_sums_equal_the_definition_however_the_batch_is_cut() {
    let grads = singles(&[0, 1, 2, 3, 4, 5, 6]);
    let all: Vec<_> = (0..7).map(|i| Some(example(i))).collect();
    for rule in RULES {
        let mut seen = std::collections::BTreeSet::new();
        for size in [2, 3, 8] {
            let mut batches: Vec<Vec<_>> = all.chunks(size).map(<[_]>::to_vec).collect();
            batches.iter_mut().for_each(|b| b.resize(size, None));
            for engine in engines() {
                let (sum, counts, names) = clipped(engine, rule, &batches);
                let params: Vec<(&str, usize)> = names.iter().map(|(n, len)| (n.as_str(), *len)).collect();
                let lengths: Vec<usize> = names.iter().map(|n| n.1).collect();
                let want = clipped_sum(&grads, &lengths, rule).unwrap();
                let worst = &compare(&params, &sum, &want.sum).unwrap()[0];
                assert!(worst.relative <= 2e-5, "{rule:?} {size} {}: {worst:?}", engine.describe());
                assert_eq!((counts.examples, counts.not_finite), (7, 0));
                seen.insert(counts.clipped);
                if let ClipRule::Flat { norm } = rule {
                    assert_eq!(counts.clipped, want.norms.iter().filter(|n| **n > norm).count() as u64);
                }
            }
        }
        assert_eq!(seen.len(), 1, "{rule:?}: {seen:?}");
    }
}

#[test]
fn an_example_that_is_not_finite_changes_nothing_and_is_counted() {
    let good: Vec<_> = [1, 4, 6].map(|i| Some(example(i))).into();
    for rule in RULES {
        for engine in engines() {
            let mut without = good.clone();
            without.insert(1, None);
            let (want, ..) = clipped(engine, rule, &[without]);
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in 0..2 {
                    let mut bad = example(3);
                    if place == 0 {
                        bad.0[7] = poison
                    } else {
                        bad.1[3] = poison
                    }
                    let mut with = good.clone();
                    with.insert(1, Some(bad));
                    let (got, counts, _) = clipped(engine, rule, &[with]);
                    assert_eq!(got, want, "{rule:?} {poison} {}", engine.describe());
                    assert_eq!((counts.examples, counts.not_finite), (4, 1));
                }
            }
        }
    }
}

/// Runs the factors' kernel on given squared norms, parameter by parameter.
fn factors(
    engine: &dyn Engine,
    rule: ClipRule,
    norms: &[Vec<f32>],
    weights: &[f32],
) -> (Vec<Vec<f32>>, [u32; 3]) {
    let (batch, params, stride) = (weights.len(), norms.len(), weights.len().next_multiple_of(64));
    let mut layout = Layout::default();
    let f = Factors {
        batch,
        params,
        stride,
        norms: layout.add("norms", DType::F32, params * stride),
        weights: layout.add("weights", DType::F32, batch),
        factors: layout.add("factors", DType::F32, params * stride),
        counts: layout.add("counts", DType::U32, 3 * batch),
    };
    let mut rec = Recording::new();
    f.record(&mut rec, rule).unwrap();
    let mut session = engine.open(&layout).unwrap();
    // NaN between the rows: what is not an example's must not be read.
    let mut all = vec![f32::NAN; params * stride];
    norms.iter().zip(all.chunks_mut(stride)).for_each(|(n, row)| row[..batch].copy_from_slice(n));
    session.write(f.norms, &all).unwrap();
    session.write(f.weights, weights).unwrap();
    session.write(f.factors, &vec![7.0; params * stride]).unwrap();
    let program = session.prepare(&rec).unwrap();
    session.run(program).unwrap();
    let found = session.read(f.factors).unwrap();
    let counts = session.read_u32(f.counts).unwrap();
    let count = |i: usize| counts[i * batch..][..batch].iter().sum();
    let rows = if rule.per_layer() { params } else { 1 };
    (found.chunks(stride).take(rows).map(|r| r[..batch].to_vec()).collect(), [0, 1, 2].map(count))
}

#[test]
fn hostile_norms_never_leave_the_bound() {
    let largest = f32::MAX;
    // (squared norms of two parameters, weight, expected: None for a factor of 0 that is counted)
    type Row = (f32, f32, f32, Option<f64>);
    let c = 0.1f64;
    let rows: [Row; 16] = [
        (0.0, 0.0, 1.0, Some(1.0)),
        (-0.0, 0.0, 1.0, Some(1.0)),
        (1e-45, 0.0, 1.0, Some(1.0)),
        (1e-30, 1e-38, 1.0, Some(1.0)),
        (0.0025, 0.0025, 1.0, Some(1.0)),
        (0.01, 0.0, 1.0, Some(1.0)),
        (0.0101, 0.0, 1.0, Some(c / 0.0101f64.sqrt())),
        (3.0, 1.0, 1.0, Some(c / 2.0)),
        (1e30, 0.0, 1.0, Some(c / 1e15)),
        (largest, 0.0, 1.0, Some(c / (largest as f64).sqrt())),
        (largest, largest, 1.0, None),
        (f32::INFINITY, 0.0, 1.0, None),
        (f32::NAN, 1.0, 1.0, None),
        (f32::INFINITY, f32::NEG_INFINITY, 1.0, None),
        (-4.0, 0.0, 1.0, Some(c / 2.0)),
        (4.0, -4.0, 1.0, Some(c / 8f64.sqrt())),
    ];
    let column = |f: fn(&Row) -> f32| rows.iter().map(f).collect::<Vec<f32>>();
    let norms = [column(|r| r.0), column(|r| r.1)];
    for engine in engines() {
        let f32s = engine.describe().contains("f64");
        let (found, counts) = factors(engine, ClipRule::Flat { norm: c }, &norms, &column(|r| r.2));
        for (row, &factor) in rows.iter().zip(&found[0]) {
            // At f64 the sum of two largest f32 is finite; it is clipped instead of dropped.
            let want = match row.3 {
                None if f32s && row.0 == largest => c / (2.0 * largest as f64).sqrt(),
                want => want.unwrap_or(0.0),
            };
            assert!((factor as f64 - want).abs() <= 1e-6 * want, "{row:?}: {factor}, {}", engine.describe());
            let norm = (row.0.abs() as f64 + row.1.abs() as f64).sqrt();
            assert!(factor == 0.0 || factor as f64 * norm <= c * (1.0 + 1e-6), "{row:?}: {factor}");
        }
        assert_eq!(counts[0], 16);
        assert_eq!(counts[2], if f32s { 3 } else { 4 });
        // The same norms as padding: no factor, no count.
        let (found, counts) = factors(engine, ClipRule::Flat { norm: c }, &norms, &[0.0; 16]);
        assert_eq!((found[0].as_slice(), counts), ([0.0; 16].as_slice(), [0; 3]));
        // By layer: each parameter within its share; one that is not finite drops the example.
        let rule = ClipRule::PerLayer { norm: c };
        let (found, _) = factors(engine, rule, &norms, &[1.0; 16]);
        for (b, row) in rows.iter().enumerate() {
            let dropped = row.3.is_none() && !(f32s && row.0 == largest);
            for (p, square) in [row.0, row.1].into_iter().enumerate() {
                let norm = (square.abs() as f64).sqrt();
                let share = c / 2f64.sqrt();
                let want = if norm > share { share / norm } else { 1.0 };
                let want = if dropped { 0.0 } else { want };
                let got = found[p][b] as f64;
                assert!((got - want).abs() <= 1e-6 * want, "{row:?} {p}: {got} against {want}");
            }
        }
        // Automatic: below the bound however small the norm is.
        let rule = ClipRule::Automatic { norm: c, gamma: 1e-10 };
        let (found, _) = factors(engine, rule, &norms, &[1.0; 16]);
        for (row, &factor) in rows.iter().zip(&found[0]) {
            let norm = (row.0.abs() as f64 + row.1.abs() as f64).sqrt();
            assert!(factor == 0.0 || factor as f64 * norm <= c * (1.0 + 1e-6), "{row:?}: {factor}");
            assert!(row.3.is_none() || factor > 0.0);
        }
    }
}

#[test]
fn every_norm_near_the_bound_stays_within_it() {
    let c = 0.3f64;
    let batch = 4096;
    let norms: Vec<f32> = (0..batch).map(|i| (c * c) as f32 * (1.0 + (i as f32 - 2048.0) * 6e-8)).collect();
    for engine in engines() {
        let rule = ClipRule::Flat { norm: c };
        let (found, _) = factors(engine, rule, std::slice::from_ref(&norms), &vec![1.0; batch]);
        for (square, factor) in norms.iter().zip(&found[0]) {
            let clipped = *factor as f64 * (*square as f64).sqrt();
            assert!(clipped <= c * (1.0 + 1e-6) && clipped >= c * (1.0 - 2e-4), "{square}: {factor}");
        }
    }
}

#[test]
fn rules_and_plans_that_do_not_fit_are_refused_by_name() {
    for x in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-30, 1e30] {
        let bad = |rule: ClipRule| match rule.validate() {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{rule:?}: {other:?}"),
        };
        assert_eq!(bad(ClipRule::Flat { norm: x }), "clipping_norm");
        assert_eq!(bad(ClipRule::PerLayer { norm: x }), "clipping_norm");
        assert_eq!(bad(ClipRule::Automatic { norm: 1.0, gamma: x }), "gamma");
    }
    let engine = CpuEngine::<f32>::new();
    let (graph, loss) = perceptron(2, WIDTHS);
    let rules = [ClipRule::Flat { norm: 1.0 }, ClipRule::PerLayer { norm: 1.0 }];
    for (rule, other) in [(rules[0], rules[1]), (rules[1], rules[0])] {
        let mut plan = lower(&engine, &graph, Mode::PerExample { loss }, Some(other), u64::MAX);
        assert!(matches!(Clipped::new(&mut plan, rule), Err(Error::Invalid { .. })));
    }
    let mut plain = lower(&engine, &graph, Mode::Plain { loss }, None, u64::MAX);
    assert!(matches!(Clipped::new(&mut plain, rules[0]), Err(Error::Invalid { .. })));
}
