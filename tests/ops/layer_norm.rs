use veilgrad::ops::layer_norm::LayerNorm;
use veilgrad::ops::{Forward, Op};
use veilgrad::record::{DType, Layout, Recording};
use veilgrad::shape::Shape;

use crate::harness::{Case, Init, engines};

pub fn cases() -> Vec<Case> {
    let case = |name: String, dims: Vec<usize>, init: Init| {
        // Two elements normalise to +-1 whatever they are, but for eps: only a large one leaves a gradient.
        let op = LayerNorm { eps: if dims.last() == Some(&2) { 1.0 } else { 1e-6 } };
        let width = *dims.last().expect("rank 2 or more");
        let tokens = dims[1..dims.len() - 1].iter().product::<usize>();
        Case::new(op, name)
            .example(Shape::new(dims), init)
            .shared([width], Init::Scaled(0.3, 1.0))
            .shared([width], Init::Normal)
            .reduction(width.max(tokens))
    };
    let mut cases: Vec<Case> = [1, 2, 3, 15, 16, 17, 63, 65, 192, 384, 768, 1600]
        .into_iter()
        .map(|d| case(format!("3x2x{d}"), vec![3, 2, d], Init::Normal))
        .collect();
    cases.push(case("rank 2".into(), vec![5, 33], Init::Normal));
    cases.push(case("rank 4".into(), vec![2, 3, 4, 20], Init::Normal));
    cases.push(case("many tokens".into(), vec![2, 197, 48], Init::Normal));
    cases.push(case("one token".into(), vec![4, 1, 24], Init::Normal));
    cases.push(case("several tasks".into(), vec![9, 65, 64], Init::Normal));
    // Conditioning: inputs near 1000 carry rounding of 1000 eps against a spread of 1.
    cases.push(case("offset".into(), vec![2, 3, 40], Init::Scaled(1.0, 1000.0)).slack(100.0));
    cases.push(case("small".into(), vec![2, 3, 40], Init::Scaled(1e-2, 0.0)));
    cases
}

/// The outputs of rows of `width` with gamma 1 and beta 0, from every engine.
fn normalise(x: &[f32], width: usize) -> Vec<Vec<f32>> {
    let shapes = [Shape::from([x.len() / width, width]), Shape::from([width]), Shape::from([width])];
    let op = LayerNorm { eps: 1e-6 };
    let mut layout = Layout::default();
    let inputs = [0, 1, 2].map(|i| layout.add("input", DType::F32, shapes[i].len()));
    let outputs: Vec<_> = op
        .outputs(&shapes)
        .expect("shapes")
        .iter()
        .map(|t| layout.add("output", DType::F32, t.shape.len()))
        .collect();
    let mut rec = Recording::new();
    op.forward(&mut rec, &Forward { shapes: &shapes, inputs: &inputs, outputs: &outputs, scratch: &[] })
        .expect("recording");
    let run = |engine: Box<dyn veilgrad::record::Engine>| {
        let mut session = engine.open(&layout).expect("session");
        session.write(inputs[0], x).expect("write");
        session.write(inputs[1], &vec![1.0; width]).expect("write");
        let program = session.prepare(&rec).expect("program");
        session.run(program).expect("run");
        session.read(outputs[0]).expect("read")
    };
    engines().into_iter().map(run).collect()
}

#[test]
fn large_offsets_keep_the_spread() {
    let x = [40_000.0, 40_001.0, 40_002.0, 40_003.0, 80_000.0, 80_001.0, 80_002.0, 80_003.0];
    for y in normalise(&x, 4) {
        for (y, want) in y.iter().zip([-1.341_640_7, -0.447_213_6, 0.447_213_6, 1.341_640_7].repeat(2)) {
            assert!((y - want).abs() <= 2e-6, "{y}, want {want}");
        }
    }
}

#[test]
fn constant_rows_give_zero() {
    for (width, value) in [(256, 1234.0), (1600, 1234.567), (1, 7.25), (3, 1e-30), (100, 3.3e7)] {
        for y in normalise(&vec![value; 2 * width], width) {
            assert!(y.iter().all(|y| y.abs() <= 1e-6), "{width} of {value}: {:?}", &y[..1]);
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let op = LayerNorm { eps: 1e-6 };
    for shapes in [
        vec![Shape::from([4]), Shape::from([4]), Shape::from([4])],
        vec![Shape::from([2, 4]), Shape::from([5]), Shape::from([4])],
        vec![Shape::from([2, 4]), Shape::from([4]), Shape::from([2, 4])],
        vec![Shape::from([2, 4]), Shape::from([4])],
    ] {
        assert!(op.outputs(&shapes).is_err(), "{shapes:?}");
    }
}
