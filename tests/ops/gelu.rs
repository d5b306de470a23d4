use veilgrad::ops::gelu::Gelu;
use veilgrad::ops::{Backward, Forward, Grad, Op};
use veilgrad::record::Recording;
use veilgrad::shape::Shape;

use crate::harness::{Case, Init, engines};
use crate::lab::Lab;

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 3, 63, 64, 65, 257, 70_001]
        .into_iter()
        .map(|d| Case::new(Gelu, format!("2x{d}")).example([2, d], Init::Normal))
        .collect();
    cases.push(Case::new(Gelu, "wide").example([3, 5, 400], Init::Scaled(4.0, 0.0)));
    cases
}

#[test]
fn extreme_inputs() {
    let x = [0.0, -0.0, 1e-30, -1e-40, 50.0, -50.0, 1e4, -1e4, 3e38, -3e38, f64::NAN, 5.6, -5.6];
    let mut lab = Lab::new(3);
    let (input, y) = (lab.given(&x), lab.blank(x.len()));
    let (dy, dx) = (lab.given(&[1.0; 13]), lab.blank(x.len()));
    let shapes = [Shape::from([1, x.len()])];
    let mut rec = Recording::new();
    let io = Forward { shapes: &shapes, inputs: &[input], outputs: &[y], scratch: &[] };
    Gelu.forward(&mut rec, &io).expect("forward");
    let grads = [Some(Grad { slice: dx, accumulate: false })];
    let io = Backward {
        shapes: &shapes,
        inputs: &[input],
        outputs: &[y],
        dy,
        dx: &grads,
        norms: &[],
        scratch: &[],
    };
    Gelu.backward(&mut rec, &io).expect("backward");
    for engine in engines() {
        let run = lab.run(engine.as_ref(), &rec, &[y, dx]);
        let name = engine.describe();
        for (i, (&y, &dx)) in run.values(y).iter().zip(run.values(dx)).enumerate() {
            let x = x[i] as f32 as f64;
            if x.is_nan() {
                assert!(y.is_nan() && dx.is_nan(), "{name}: NaN became {y}, {dx}");
                continue;
            }
            let (want, slope) = match x {
                x if x > 6.0 => (x, 1.0),
                x if x < -6.0 => (0.0, 0.0),
                x => {
                    let cdf = 0.5 * (1.0 + libm::erf(x / 2f64.sqrt()));
                    (x * cdf, cdf + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt())
                }
            };
            assert!((y - want).abs() <= 1e-6 * x.abs().min(10.0), "{name}: gelu({x}) = {y}, want {want}");
            assert!((dx - slope).abs() <= 2e-6, "{name}: slope at {x} is {dx}, want {slope}");
        }
    }
}
